// The fields of a plain struct, in order, for code that treats them all alike.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

namespace rose {

namespace fields_detail {

// Converts to any type, so it can initialise any field. Only tested for validity, never evaluated.
struct Anything {
  template <typename T>
  operator T() const noexcept;
};

template <typename T, std::size_t... Places>
constexpr bool is_made_of(std::index_sequence<Places...>) {
  return requires { T{(static_cast<void>(Places), Anything{})...}; };
}

// Number of values that initialise a T: the number of its fields.
template <typename T, std::size_t Most>
constexpr std::size_t count() {
  if constexpr (Most == 0 || is_made_of<T>(std::make_index_sequence<Most>{})) {
    return Most;
  } else {
    return count<T, Most - 1>();
  }
}

}  // namespace fields_detail

// Returns references to the fields of `one`, a struct without base, constructor or array. A struct
// with more than 12 fields does not compile.
template <typename T>
constexpr auto fields_of(const T& one) noexcept {
  constexpr std::size_t kFields = fields_detail::count<T, 13>();
  static_assert(kFields >= 1 && kFields <= 12);
  // clang-format off
  if constexpr (kFields == 1) {
    const auto& [a] = one; return std::tie(a);
  } else if constexpr (kFields == 2) {
    const auto& [a, b] = one; return std::tie(a, b);
  } else if constexpr (kFields == 3) {
    const auto& [a, b, c] = one; return std::tie(a, b, c);
  } else if constexpr (kFields == 4) {
    const auto& [a, b, c, d] = one; return std::tie(a, b, c, d);
  } else if constexpr (kFields == 5) {
    const auto& [a, b, c, d, e] = one; return std::tie(a, b, c, d, e);
  } else if constexpr (kFields == 6) {
    const auto& [a, b, c, d, e, f] = one; return std::tie(a, b, c, d, e, f);
  } else if constexpr (kFields == 7) {
    const auto& [a, b, c, d, e, f, g] = one; return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (kFields == 8) {
    const auto& [a, b, c, d, e, f, g, h] = one; return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (kFields == 9) {
    const auto& [a, b, c, d, e, f, g, h, i] = one; return std::tie(a, b, c, d, e, f, g, h, i);
  } else if constexpr (kFields == 10) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = one;
    return std::tie(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (kFields == 11) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = one;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k);
  } else {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = one;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l);
  }
  // clang-format on
}

// The references would outlive a temporary.
template <typename T>
void fields_of(const T&& one) = delete;

}  // namespace rose
