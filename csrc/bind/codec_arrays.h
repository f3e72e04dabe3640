// What the bindings of the codec share: arrays of NumPy as spans and back, and a choice of ISA.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bind/status.h"
#include "transfer/buffer.h"
#include "transfer/simd.h"

namespace rose::bind {

template <typename T>
using Array = pybind11::array_t<T, pybind11::array::c_style>;

// An array that owns the numbers.
template <typename T>
Array<T> to_array(transfer::Buffer<T> numbers) {
  auto owner = std::make_unique<transfer::Buffer<T>>(std::move(numbers));
  const T* const data = owner->data();
  const auto size = static_cast<pybind11::ssize_t>(owner->size());
  const pybind11::capsule keeper{
      owner.get(), [](void* kept) { delete static_cast<transfer::Buffer<T>*>(kept); }};
  static_cast<void>(owner.release());
  return Array<T>{size, data, keeper};
}

// An instruction set by name, or the best one; refuses one that this machine lacks.
inline transfer::Isa isa_of(const std::optional<std::string>& name) {
  const transfer::Isa best = transfer::best_isa();
  if (!name) return best;
  const std::optional<transfer::Isa> isa = transfer::isa_named(*name);
  if (!isa) raise(Status::invalid_argument("isa '" + *name + "': choose portable, avx2 or avx512"));
  if (*isa > best) {
    raise(Status::invalid_argument("isa '" + *name + "': this machine has " +
                                   std::string{transfer::name_of(best)} + " at most"));
  }
  return *isa;
}

}  // namespace rose::bind
