// Requests memory before it is read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rose::transfer {

// The hardware prefetcher keeps too few lines of two streams in flight: a comparison with its own
// prefetches is a quarter faster on some machines, and no slower on any tested one. Measured with
// 768 to 4,096 bytes; this is about the middle.
inline constexpr std::size_t kAheadBytes = 1536;
inline constexpr std::size_t kLineBytes = 64;

// Prefetches the memory kAheadBytes behind the next `bytes` at `here`. It may be unmapped: a
// prefetch has no visible effect and never faults.
inline void ask_ahead(const void* here, std::size_t bytes) noexcept {
  const auto ahead = reinterpret_cast<std::uintptr_t>(here) + kAheadBytes;
  for (std::size_t line = 0; line < bytes; line += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(ahead + line));
  }
}

}  // namespace rose::transfer
