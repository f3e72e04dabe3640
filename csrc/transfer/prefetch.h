// Requests memory before it is read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rose::transfer {

// Distance of a prefetch. When two arrays are compared, the hardware prefetcher keeps too few lines
// in flight: with software prefetches the comparison is a quarter faster on some machines, and on
// all tested machines at least as fast. Distances of 768 to 4,096 bytes were measured; this one is
// the fastest while one of the arrays is also copied.
inline constexpr std::size_t kAheadBytes = 2560;
inline constexpr std::size_t kLineBytes = 64;

// Prefetches `bytes` bytes of memory from the address `here` + kAheadBytes on. The memory may be
// unmapped: a prefetch has no visible effect and never faults.
inline void ask_ahead(const void* here, std::size_t bytes) noexcept {
  const auto ahead = reinterpret_cast<std::uintptr_t>(here) + kAheadBytes;
  for (std::size_t line = 0; line < bytes; line += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(ahead + line));
  }
}

}  // namespace rose::transfer
