// Quantised weights: one byte each, with a scale per block. docs/protocol.md, "Quantised weights".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/status.h"
#include "kernels/quantise_code.h"
#include "transfer/buffer.h"
#include "transfer/simd.h"

namespace rose::transfer {

using kernels::CodeKind;

// Accepts "fp8" (e4m3fn) and "int8"; nothing for another name.
std::optional<CodeKind> code_kind_named(std::string_view name) noexcept;

// A matrix of bf16 bits. Row r starts at bits + r * row_stride; row_stride >= cols.
struct MatrixView {
  const std::uint16_t* bits{nullptr};
  std::uint64_t rows{0};
  std::uint64_t cols{0};
  std::uint64_t row_stride{0};
};

// Size of a block of weights that share one scale, at least 1 x 1; blocks at the edges are smaller.
struct ScaleBlock {
  std::uint64_t rows{128};
  std::uint64_t cols{128};

  std::uint64_t along_rows(std::uint64_t matrix_rows) const noexcept;
  std::uint64_t along_cols(std::uint64_t matrix_cols) const noexcept;
};

struct Quantised {
  Buffer<std::uint8_t> codes;  // rows x cols
  Buffer<float> scales;        // blocks along the rows x blocks along the columns
};

// Reads each weight twice, the second time from the cache if a row of blocks fits in the cache. The
// result does not depend on the caller's rounding and flush-to-zero modes.
Result<Quantised> quantise(const MatrixView& weights, CodeKind kind, const ScaleBlock& block,
                           Isa isa) noexcept;

// Codes of `rows` x `cols` weights, with their scales.
struct QuantisedView {
  std::span<const std::uint8_t> codes;
  std::span<const float> scales;
  std::uint64_t rows{0};
  std::uint64_t cols{0};
};

// Returns rows x cols weights as bf16 bits. InvalidArgument for sizes that do not match, and for an
// impossible scale: 0, negative, infinite or NaN.
Result<Buffer<std::uint16_t>> dequantise(const QuantisedView& from, CodeKind kind,
                                         const ScaleBlock& block) noexcept;

}  // namespace rose::transfer
