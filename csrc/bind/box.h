// NumPy arrays as boxes of elements, without conversion or copy.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <string>

#include "bind/status.h"
#include "transfer/box.h"
#include "transfer/delta.h"

namespace rose::bind {

// Returns the shape of an array whose elements have `item_bytes` each.
inline transfer::Shape shape_of(const char* name, const pybind11::array& array,
                                pybind11::ssize_t item_bytes) {
  transfer::Shape shape;
  for (pybind11::ssize_t i = 0; i < array.ndim(); ++i) {
    const pybind11::ssize_t stride = array.strides(i);
    if (array.shape(i) > 1 && (stride < 0 || stride % item_bytes != 0)) {
      raise(Status::invalid_argument(std::string{name} + " has a stride of " +
                                     std::to_string(stride) +
                                     " bytes, which is negative or not a multiple of its "
                                     "elements' size: pass a copy"));
    }
    if (!shape.append({static_cast<std::uint64_t>(array.shape(i)),
                       static_cast<std::uint64_t>(stride / item_bytes)})) {
      raise(Status::invalid_argument(
          std::string{name} + " has more than 16 dimensions that are not contiguous: pass a copy"));
    }
  }
  return shape;
}

// Raises InvalidArgument unless the elements are aligned unsigned integers of `bytes` bytes
// (1, 2 or 4).
inline void check_elements(const char* name, const pybind11::array& array,
                           pybind11::ssize_t bytes) {
  const pybind11::dtype dtype = array.dtype();
  const bool is_sound =
      dtype.kind() == 'u' && dtype.itemsize() == bytes && (bytes == 1 || dtype.byteorder() == '=');
  if (!is_sound) {
    raise(Status::invalid_argument(std::string{name} + " has the dtype " +
                                   std::string(pybind11::str(dtype)) + ", expected uint" +
                                   std::to_string(8 * bytes)));
  }
  if ((array.flags() & pybind11::detail::npy_api::NPY_ARRAY_ALIGNED_) == 0) {
    raise(Status::invalid_argument(std::string{name} + " is not aligned: pass a copy"));
  }
}

template <typename T>
transfer::Box<const T> box_of(const char* name, const pybind11::array& array) {
  check_elements(name, array, sizeof(T));
  return {static_cast<const T*>(array.data()), shape_of(name, array, sizeof(T))};
}

template <typename T>
transfer::Box<T> writable_box_of(const char* name, pybind11::array& array) {
  check_elements(name, array, sizeof(T));
  if (!array.writeable()) {
    raise(Status::invalid_argument(std::string{name} +
                                   " is read-only: pass an array that can be written to"));
  }
  return {static_cast<T*>(array.mutable_data()), shape_of(name, array, sizeof(T))};
}

// Calls use(T{}) with the element type of `array`.
template <typename Use>
auto with_elements_of(const char* name, const pybind11::array& array, Use use) {
  switch (array.itemsize()) {
    case 1:
      return use(std::uint8_t{});
    case 2:
      return use(std::uint16_t{});
    case 4:
      return use(std::uint32_t{});
    default:
      raise(Status::invalid_argument(std::string{name} +
                                     ": the dtype must be uint8, uint16 or uint32, got " +
                                     std::string(pybind11::str(array.dtype()))));
  }
}

}  // namespace rose::bind
