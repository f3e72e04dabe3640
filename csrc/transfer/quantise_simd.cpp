#include "transfer/quantise_simd.h"

#include <algorithm>

namespace rose::transfer {

using kernels::CodeKind;

namespace {

template <CodeKind kKind>
void encode_all(const std::uint16_t* bits, std::size_t count, float scale,
                std::uint8_t* codes) noexcept {
  for (std::size_t i = 0; i < count; ++i) codes[i] = kernels::code_of<kKind>(bits[i], scale);
}

QuantiseLoops choose(CodeKind kind, LargestOf largest_of, Encode fp8, Encode int8) noexcept {
  return {.largest_of = largest_of, .encode = kind == CodeKind::kFp8 ? fp8 : int8};
}

}  // namespace

QuantiseLoops quantise_loops(Isa isa, CodeKind kind) noexcept {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx512:
      return choose(kind, largest_of_avx512, encode_fp8_avx512, encode_int8_avx512);
    case Isa::kAvx2:
      return choose(kind, largest_of_avx2, encode_fp8_avx2, encode_int8_avx2);
#else
    case Isa::kAvx512:
    case Isa::kAvx2:
#endif
    case Isa::kPortable:
      break;
  }
  return choose(kind, largest_of_portable, encode_fp8_portable, encode_int8_portable);
}

std::uint32_t largest_of_portable(const std::uint16_t* bits, std::size_t count) noexcept {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, kernels::finite_magnitude(bits[i]));
  }
  return largest;
}

void encode_fp8_portable(const std::uint16_t* bits, std::size_t count, float scale,
                         std::uint8_t* codes) noexcept {
  encode_all<CodeKind::kFp8>(bits, count, scale, codes);
}

void encode_int8_portable(const std::uint16_t* bits, std::size_t count, float scale,
                          std::uint8_t* codes) noexcept {
  encode_all<CodeKind::kInt8>(bits, count, scale, codes);
}

}  // namespace rose::transfer
