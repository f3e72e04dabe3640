#include "memory/scrub.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rose::memory {

namespace {

#if defined(__x86_64__)
// Both halves of a line in one go: a line that is written whole is not read before.
[[gnu::target("avx2")]] void stream_zeros(std::byte* at, std::size_t size_bytes) noexcept {
  const __m256i zeros = _mm256_setzero_si256();
  for (std::byte* line = at; line != at + size_bytes; line += kScrubAlignment) {
    auto* halves = reinterpret_cast<__m256i*>(line);
    _mm256_stream_si256(halves, zeros);
    _mm256_stream_si256(halves + 1, zeros);
  }
  // Such stores are ordered with nothing else: the borrower is told of the slab after this.
  _mm_sfence();
}
#endif

}  // namespace

void scrub_host(std::byte* at, std::size_t size_bytes) noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return stream_zeros(at, size_bytes);
#endif
  std::memset(at, 0, size_bytes);
}

}  // namespace rose::memory
