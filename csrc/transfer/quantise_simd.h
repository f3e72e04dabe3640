// The two quantising loops over all weights, for each instruction set. All give the same bits, in
// the default floating-point environment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quantise_code.h"
#include "transfer/simd.h"

namespace rose::transfer {

// Returns the largest finite magnitude of `count` bf16 numbers, as bits.
using LargestOf = std::uint32_t (*)(const std::uint16_t* bits, std::size_t count) noexcept;
// Writes a code for each of `count` bf16 numbers.
using Encode = void (*)(const std::uint16_t* bits, std::size_t count, float scale,
                        std::uint8_t* codes) noexcept;

struct QuantiseLoops {
  LargestOf largest_of;
  Encode encode;
};

// `isa` must be at most best_isa().
QuantiseLoops quantise_loops(Isa isa, kernels::CodeKind kind) noexcept;

// One version per instruction set, to be called only on a machine that has the instructions. As in
// simd.h, the AVX versions exist only on x86-64, and share no inline function with the portable
// version.
std::uint32_t largest_of_portable(const std::uint16_t* bits, std::size_t count) noexcept;
void encode_fp8_portable(const std::uint16_t* bits, std::size_t count, float scale,
                         std::uint8_t* codes) noexcept;
void encode_int8_portable(const std::uint16_t* bits, std::size_t count, float scale,
                          std::uint8_t* codes) noexcept;
#if defined(__x86_64__)
std::uint32_t largest_of_avx2(const std::uint16_t* bits, std::size_t count) noexcept;
void encode_fp8_avx2(const std::uint16_t* bits, std::size_t count, float scale,
                     std::uint8_t* codes) noexcept;
void encode_int8_avx2(const std::uint16_t* bits, std::size_t count, float scale,
                      std::uint8_t* codes) noexcept;
std::uint32_t largest_of_avx512(const std::uint16_t* bits, std::size_t count) noexcept;
void encode_fp8_avx512(const std::uint16_t* bits, std::size_t count, float scale,
                       std::uint8_t* codes) noexcept;
void encode_int8_avx512(const std::uint16_t* bits, std::size_t count, float scale,
                        std::uint8_t* codes) noexcept;
#endif

}  // namespace rose::transfer
