// Conversion of arrays and instruction set names between C++ and Python.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transfer/buffer.h"
#include "transfer/simd.h"

namespace rose::bind {

// Returns the instruction set of this name; without a name, the best one of this machine. Raises
// InvalidArgument if this machine lacks it.
transfer::Isa isa_of(const std::optional<std::string>& name);

// Returns an array of this shape that owns `numbers`.
template <typename T>
pybind11::array_t<T> to_array_of(std::vector<pybind11::ssize_t> shape,
                                 transfer::Buffer<T> numbers) {
  namespace py = pybind11;
  auto owner = std::make_unique<transfer::Buffer<T>>(std::move(numbers));
  const T* const data = owner->data();
  const py::capsule keeper{owner.get(),
                           [](void* kept) { delete static_cast<transfer::Buffer<T>*>(kept); }};
  static_cast<void>(owner.release());
  return py::array_t<T>{std::move(shape), data, keeper};
}

}  // namespace rose::bind
