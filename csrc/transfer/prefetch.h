// Asking for memory before it is read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rose::transfer {

// The processor's own prefetching keeps too few lines of two streams on their way: a comparison
// that asks by itself is a quarter faster on some machines, and no slower on any that was tried.
// Measured with 768 to 4,096 bytes, of which this is about the middle.
inline constexpr std::size_t kAheadBytes = 1536;
inline constexpr std::size_t kLineBytes = 64;

// Asks for what lies kAheadBytes behind the next `bytes` at `here`. That may be no memory at all:
// a prefetch reads nothing that the program could see, and never faults.
inline void ask_ahead(const void* here, std::size_t bytes) noexcept {
  const auto ahead = reinterpret_cast<std::uintptr_t>(here) + kAheadBytes;
  for (std::size_t line = 0; line < bytes; line += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(ahead + line));
  }
}

}  // namespace rose::transfer
