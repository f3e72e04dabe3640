// Conversion of deltas and arrays, shared by the codec bindings.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>

#include "bind/arrays.h"
#include "bind/unlocked.h"
#include "transfer/delta.h"
#include "transfer/simd.h"

namespace rose::bind {

template <typename T>
using Array = pybind11::array_t<T, pybind11::array::c_style>;

// Returns a 1-d array that owns `numbers`.
template <typename T>
Array<T> to_array(transfer::Buffer<T> numbers) {
  const auto size = static_cast<pybind11::ssize_t>(numbers.size());
  return to_array_of({size}, std::move(numbers));
}

inline pybind11::tuple to_tuple(const transfer::Digest& digest) {
  return pybind11::make_tuple(digest.first, digest.second);
}

// The fields of a Python delta.
struct DeltaArrays {
  std::uint64_t count;
  std::uint32_t block_elements;
  std::uint32_t width;
  Array<std::uint64_t> entries;
  Array<std::uint32_t> payload;

  transfer::DeltaView view() const {
    return {.count = count,
            .block_elements = block_elements,
            .width = width,
            .entries = {entries.data(), static_cast<std::size_t>(entries.size())},
            .payload = {payload.data(), static_cast<std::size_t>(payload.size())}};
  }
};

inline DeltaArrays arrays_of(const pybind11::handle& delta) {
  return {.count = delta.attr("count").cast<std::uint64_t>(),
          .block_elements = delta.attr("block_elements").cast<std::uint32_t>(),
          .width = delta.attr("width").cast<std::uint32_t>(),
          .entries = delta.attr("entries").cast<Array<std::uint64_t>>(),
          .payload = delta.attr("payload").cast<Array<std::uint32_t>>()};
}

}  // namespace rose::bind
