// Quantising where sanitizers can see it: buffers that end where the last weight does.
#include "transfer/quantise.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"

using namespace rose;
using namespace rose::transfer;

namespace {

constexpr CodeKind kKinds[]{CodeKind::kFp8, CodeKind::kInt8};

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= best_isa()) all.push_back(isa);
  }
  return all;
}

// A matrix whose last row ends where the allocation does.
struct OwnMatrix {
  std::vector<std::uint16_t> bits;
  std::uint64_t rows;
  std::uint64_t cols;
  std::uint64_t row_stride;

  OwnMatrix(std::uint64_t its_rows, std::uint64_t its_cols, std::uint64_t gap)
      : rows{its_rows}, cols{its_cols}, row_stride{its_cols + gap} {
    std::mt19937 random{static_cast<unsigned>(rows * 1000 + cols)};
    bits.resize(rows == 0 ? 0 : (rows - 1) * row_stride + cols);
    for (auto& one : bits) one = static_cast<std::uint16_t>(random());
    bits.shrink_to_fit();
  }

  MatrixView view() const {
    return {.bits = bits.data(), .rows = rows, .cols = cols, .row_stride = row_stride};
  }
};

template <typename T>
std::vector<T> copy_of(const Buffer<T>& buffer) {
  return {buffer.data(), buffer.data() + buffer.size()};
}

void check_refused(const Status& status, const std::string& says) {
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK_EQ(status.message(), says);
}

}  // namespace

TEST(every_instruction_set_reads_and_writes_its_own_only) {
  for (const std::uint64_t cols : {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65}) {
    for (const std::uint64_t gap : {0, 3}) {
      const OwnMatrix matrix{5, cols, gap};
      for (const CodeKind kind : kKinds) {
        const ScaleBlock block{.rows = 2, .cols = 13};
        const Quantised want = quantise(matrix.view(), kind, block, Isa::kPortable).take();
        CHECK_EQ(want.codes.size(), 5 * cols);
        CHECK_EQ(want.scales.size(), 3 * ((cols + 12) / 13));
        for (const Isa isa : isas()) {
          const Quantised made = quantise(matrix.view(), kind, block, isa).take();
          CHECK(copy_of(made.codes) == copy_of(want.codes));
          CHECK(copy_of(made.scales) == copy_of(want.scales));
        }
        const QuantisedView from{
            .codes = want.codes.span(), .scales = want.scales.span(), .rows = 5, .cols = cols};
        CHECK_EQ(dequantise(from, kind, block).take().size(), 5 * cols);
      }
    }
  }
}

TEST(blocks_may_be_larger_than_any_matrix) {
  const OwnMatrix matrix{3, 20, 0};
  const ScaleBlock block{.rows = ~std::uint64_t{0}, .cols = ~std::uint64_t{0}};
  const Quantised made = quantise(matrix.view(), CodeKind::kFp8, block, best_isa()).take();
  CHECK_EQ(made.scales.size(), 1);
}

TEST(sizes_that_no_matrix_has_are_refused) {
  const ScaleBlock block{.rows = 1, .cols = 1};
  const auto refused = [&](const MatrixView& view, const ScaleBlock& by, const std::string& says) {
    check_refused(quantise(view, CodeKind::kFp8, by, Isa::kPortable).status(), says);
  };
  const OwnMatrix matrix{2, 4, 0};
  refused(matrix.view(), {.rows = 0, .cols = 1},
          "a scale block of 0 x 1 weights: it must be at least 1 x 1");
  refused(matrix.view(), {.rows = 1, .cols = 0},
          "a scale block of 1 x 0 weights: it must be at least 1 x 1");
  refused({.bits = nullptr, .rows = 2, .cols = 4, .row_stride = 3}, block,
          "rows of 4 weights are 3 apart: they must not overlap");
  const std::uint64_t many = std::uint64_t{1} << 32;
  refused({.bits = nullptr, .rows = many, .cols = 4, .row_stride = many}, block,
          "4294967296 rows 4294967296 apart: a matrix must span at most 2^62 weights");
  refused({.bits = nullptr, .rows = many, .cols = many, .row_stride = many}, block,
          "4294967296 rows 4294967296 apart: a matrix must span at most 2^62 weights");
}

TEST(scales_that_no_weights_have_are_refused_before_anything_is_read) {
  const std::vector<std::uint8_t> codes(4, 0x38);
  const ScaleBlock block{.rows = 1, .cols = 2};
  for (const float bad : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const std::vector<float> scales{1, bad};
    const QuantisedView from{.codes = codes, .scales = scales, .rows = 2, .cols = 2};
    const Status status = dequantise(from, CodeKind::kFp8, block).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().starts_with("scale 1 is "));
  }
  const std::vector<float> few{1};
  check_refused(
      dequantise({.codes = codes, .scales = few, .rows = 2, .cols = 2}, CodeKind::kFp8, block)
          .status(),
      "4 codes and 1 scales: 2 x 2 weights have 2 x 1 scales");
}
