// Streams and addresses of a device for Python: both are numbers.
#pragma once

#include <bit>
#include <cstdint>

#include "driver/entries.h"

namespace rose::bind {

// An address of the device. Not a pointer to anything for this process.
using Address = std::uint64_t;

inline CUstream stream_of(std::uintptr_t handle) noexcept {
  return std::bit_cast<CUstream>(handle);
}

}  // namespace rose::bind
