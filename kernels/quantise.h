// quantise_cta_kernel, quantise_warp_kernel: bf16 weights to codes of one byte and block scales.
#pragma once

#include "quantise_code.h"

namespace rose::kernels {

constexpr u32 kQuantiseThreads = 256;
// Weights of a scale block up to which a warp has it to itself; a CTA would mostly wait.
constexpr u64 kWeightsOfWarpMax = 2048;

struct QuantiseParams {
  const u16* bits;  // row r starts at bits + r * row_stride
  u64 rows;
  u64 cols;
  u64 row_stride;
  u64 block_rows;
  u64 block_cols;
  u8* codes;      // rows x cols
  float* scales;  // one for each block, along the rows first
  CodeKind kind;
};

}  // namespace rose::kernels
