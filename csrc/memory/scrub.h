// Zeros over the bytes of another tenant, past the caches.
#pragma once

#include <cstddef>

namespace rose::memory {

// Where a region to be scrubbed begins and ends: the borders of cache lines.
inline constexpr std::size_t kScrubAlignment = 64;

// Makes `size_bytes` bytes at `at`, both multiples of kScrubAlignment, zeros: when it returns they
// are, for every thread. What it writes does not push out what serving has in the cache. The pages
// stay where they are: a slab on loan costs nobody a page fault.
void scrub_host(std::byte* at, std::size_t size_bytes) noexcept;

}  // namespace rose::memory
