// Scheduler events and actions as Python tuples: the type's index in its variant, then the fields
// in struct order.
#pragma once

#include <pybind11/pybind11.h>

#include <tuple>
#include <type_traits>
#include <variant>

#include "base/fields.h"

namespace rose::bind {

template <typename T>
auto number_of(T field) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<int>(field);
  } else {
    return field;
  }
}

template <typename... Kinds>
pybind11::tuple row_of(const std::variant<Kinds...>& kinds) {
  const auto code = static_cast<int>(kinds.index());
  const auto row = [&](const auto& one) -> pybind11::tuple {
    return std::apply(
        [&](const auto&... fields) -> pybind11::tuple {
          return pybind11::make_tuple(code, number_of(fields)...);
        },
        fields_of(one));
  };
  return std::visit(row, kinds);
}

}  // namespace rose::bind
