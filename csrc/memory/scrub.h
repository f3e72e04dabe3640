// Zeros the bytes of another tenant, past the caches.
#pragma once

#include <cstddef>

namespace rose::memory {

// Alignment of both ends of a scrubbed region: cache lines.
inline constexpr std::size_t kScrubAlignment = 64;

// Zeros `size_bytes` bytes at `at`, both multiples of kScrubAlignment, for every thread before it
// returns. It does not evict serving's data from the cache. The pages stay in place, so a lent slab
// causes no page fault.
void scrub_host(std::byte* at, std::size_t size_bytes) noexcept;

}  // namespace rose::memory
