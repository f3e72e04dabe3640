// Zeros bytes that another tenant left, if possible without using the caches.
#pragma once

#include <cstddef>

namespace rose::memory {

// Alignment of both ends of a scrubbed region: cache lines.
inline constexpr std::size_t kScrubAlignment = 64;

// Zeros `size_bytes` bytes at `at`, both multiples of kScrubAlignment. When it returns, every
// thread sees the zeros. On CPUs with AVX2 the stores bypass the caches, so that the caches
// keep serving's data. The pages stay in place, so that touching a lent slab causes no page fault.
void scrub_host(std::byte* at, std::size_t size_bytes) noexcept;

}  // namespace rose::memory
