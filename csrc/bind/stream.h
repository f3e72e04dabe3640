// Device streams and addresses, which Python holds as numbers.
#pragma once

#include <bit>
#include <cstdint>

#include "driver/entries.h"

namespace rose::bind {

// A device address, which the host cannot dereference.
using Address = std::uint64_t;

inline CUstream stream_of(std::uintptr_t handle) noexcept {
  return std::bit_cast<CUstream>(handle);
}

}  // namespace rose::bind
