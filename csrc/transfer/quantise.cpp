#include "transfer/quantise.h"

#include <algorithm>
#include <array>
#include <cfenv>
#include <cmath>
#include <string>

#include "base/ceil_div.h"
#include "transfer/quantise_simd.h"

namespace rose::transfer {

namespace {

constexpr std::uint64_t kSpanMax = std::uint64_t{1} << 62;

// Sets the default floating-point modes during its lifetime. The host program may have set another
// rounding mode or flush subnormals (torch.set_flush_denormal), but sender and receiver must
// compute the same bits.
class DefaultFloatModes {
 public:
  DefaultFloatModes() noexcept {
    std::fegetenv(&kept_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatModes() { std::fesetenv(&kept_); }
  DefaultFloatModes(const DefaultFloatModes&) = delete;
  DefaultFloatModes& operator=(const DefaultFloatModes&) = delete;

 private:
  std::fenv_t kept_;
};

Status check_scale_block(const ScaleBlock& block) noexcept {
  if (block.rows != 0 && block.cols != 0) return {};
  return Status::invalid_argument("a scale block of " + std::to_string(block.rows) + " x " +
                                  std::to_string(block.cols) +
                                  " weights: it must be at least 1 x 1");
}

Status check_matrix(const MatrixView& weights) noexcept {
  if (weights.rows > 1 && weights.row_stride < weights.cols) {
    return Status::invalid_argument("rows of " + std::to_string(weights.cols) + " weights are " +
                                    std::to_string(weights.row_stride) +
                                    " apart: they must not overlap");
  }
  const std::uint64_t span = std::max({weights.row_stride, weights.cols, std::uint64_t{1}});
  if (weights.rows <= kSpanMax / span) return {};
  return Status::invalid_argument(std::to_string(weights.rows) + " rows " + std::to_string(span) +
                                  " apart: a matrix must span at most 2^62 weights");
}

// Calls visit(first row, rows, first column, columns, index of the scale) for every scale block.
template <typename Visit>
void for_each_scale(std::uint64_t rows, std::uint64_t cols, const ScaleBlock& block,
                    Visit visit) noexcept {
  std::uint64_t scale = 0;
  for (std::uint64_t row = 0; row < rows;) {
    const std::uint64_t height = std::min(block.rows, rows - row);
    for (std::uint64_t col = 0; col < cols;) {
      const std::uint64_t width = std::min(block.cols, cols - col);
      visit(row, height, col, width, scale++);
      col += width;
    }
    row += height;
  }
}

// Rounds fp32 to bf16, half to even, subnormals too. `number` must not be a NaN.
std::uint16_t narrowed(float number) noexcept {
  const auto bits = __builtin_bit_cast(std::uint32_t, number);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1)) >> 16);
}

// The value of each code, without its scale.
using Meanings = std::array<float, 256>;

Meanings meanings_of(CodeKind kind) noexcept {
  Meanings meanings{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                     : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    const float of_fp8 = code < 128 ? size : -size;
    const auto of_int8 = static_cast<float>(code < 128 ? code : code - 256);
    meanings[static_cast<std::size_t>(code)] = kind == CodeKind::kFp8 ? of_fp8 : of_int8;
  }
  return meanings;
}

void decode(const std::uint8_t* codes, std::uint64_t count, float scale, const Meanings& meanings,
            CodeKind kind, std::uint16_t* out) noexcept {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint8_t code = codes[i];
    const bool is_nan = kind == CodeKind::kFp8 && (code & 0x7F) == kernels::kFp8Nan;
    const auto nan = static_cast<std::uint16_t>(0x7FC0 | (code & 0x80) << 8);
    out[i] = is_nan ? nan : narrowed(meanings[code] * scale);
  }
}

Status check_quantised(const QuantisedView& from, const ScaleBlock& block) noexcept {
  ROSE_TRY(check_scale_block(block));
  const std::uint64_t down = block.along_rows(from.rows);
  const std::uint64_t across = block.along_cols(from.cols);
  if (from.codes.size() != from.rows * from.cols || from.scales.size() != down * across) {
    return Status::invalid_argument(
        std::to_string(from.codes.size()) + " codes and " + std::to_string(from.scales.size()) +
        " scales: " + std::to_string(from.rows) + " x " + std::to_string(from.cols) +
        " weights have " + std::to_string(down) + " x " + std::to_string(across) + " scales");
  }
  for (std::size_t i = 0; i < from.scales.size(); ++i) {
    if (from.scales[i] > 0 && std::isfinite(from.scales[i])) continue;
    return Status::invalid_argument("scale " + std::to_string(i) + " is " +
                                    std::to_string(from.scales[i]) +
                                    ": scales must be above 0 and finite");
  }
  return {};
}

}  // namespace

std::optional<CodeKind> code_kind_named(std::string_view name) noexcept {
  if (name == "fp8") return CodeKind::kFp8;
  if (name == "int8") return CodeKind::kInt8;
  return std::nullopt;
}

std::uint64_t ScaleBlock::along_rows(std::uint64_t matrix_rows) const noexcept {
  return ceil_div(matrix_rows, rows);
}

std::uint64_t ScaleBlock::along_cols(std::uint64_t matrix_cols) const noexcept {
  return ceil_div(matrix_cols, cols);
}

Result<Quantised> quantise(const MatrixView& weights, CodeKind kind, const ScaleBlock& block,
                           Isa isa) noexcept {
  ROSE_TRY(check_scale_block(block));
  ROSE_TRY(check_matrix(weights));
  auto codes = Buffer<std::uint8_t>::create(weights.rows * weights.cols);
  ROSE_TRY(codes.status());
  auto scales =
      Buffer<float>::create(block.along_rows(weights.rows) * block.along_cols(weights.cols));
  ROSE_TRY(scales.status());

  const DefaultFloatModes modes;
  const QuantiseLoops loops = quantise_loops(isa, kind);
  for_each_scale(weights.rows, weights.cols, block,
                 [&](std::uint64_t row, std::uint64_t height, std::uint64_t col,
                     std::uint64_t width, std::uint64_t at) noexcept {
                   const std::uint16_t* const bits = weights.bits + row * weights.row_stride + col;
                   std::uint8_t* const out = codes.value().data() + row * weights.cols + col;
                   std::uint32_t amax = 0;
                   for (std::uint64_t i = 0; i < height; ++i) {
                     const std::uint16_t* const line = bits + i * weights.row_stride;
                     amax = std::max(amax, loops.largest_of(line, width));
                   }
                   const float scale = kernels::scale_of(amax, kind);
                   scales.value()[at] = scale;
                   for (std::uint64_t i = 0; i < height; ++i) {
                     const std::uint16_t* const line = bits + i * weights.row_stride;
                     loops.encode(line, width, scale, out + i * weights.cols);
                   }
                 });
  return Quantised{.codes = codes.take(), .scales = scales.take()};
}

Result<Buffer<std::uint16_t>> dequantise(const QuantisedView& from, CodeKind kind,
                                         const ScaleBlock& block) noexcept {
  const DefaultFloatModes modes;  // also for the check of the scales: a subnormal scale is above 0
  ROSE_TRY(check_quantised(from, block));
  auto weights = Buffer<std::uint16_t>::create(from.codes.size());
  ROSE_TRY(weights.status());
  const Meanings meanings = meanings_of(kind);
  for_each_scale(from.rows, from.cols, block,
                 [&](std::uint64_t row, std::uint64_t height, std::uint64_t col,
                     std::uint64_t width, std::uint64_t at) noexcept {
                   for (std::uint64_t i = row; i < row + height; ++i) {
                     const std::uint64_t place = i * from.cols + col;
                     decode(from.codes.data() + place, width, from.scales[at], meanings, kind,
                            weights.value().data() + place);
                   }
                 });
  return weights.take();
}

}  // namespace rose::transfer
