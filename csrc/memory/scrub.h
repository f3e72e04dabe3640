// Zeros bytes that another tenant left, bypassing the caches.
#pragma once

#include <cstddef>

namespace rose::memory {

// Alignment of both ends of a scrubbed region: cache lines.
inline constexpr std::size_t kScrubAlignment = 64;

// Zeros `size_bytes` bytes at `at`, both multiples of kScrubAlignment. When it returns, every
// thread sees the zeros. It does not evict serving's data from the cache. The pages stay in place,
// so that touching a lent slab causes no page fault.
void scrub_host(std::byte* at, std::size_t size_bytes) noexcept;

}  // namespace rose::memory
