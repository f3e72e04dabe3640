// quantise_cta_kernel, quantise_warp_kernel: bf16 weights to one-byte codes and block scales.
#pragma once

#include "quantise_code.h"

namespace rose::kernels {

constexpr u32 kQuantiseThreads = 256;
// Largest scale block, in weights, that one warp handles; most threads of a CTA would wait.
constexpr u64 kWeightsOfWarpMax = 2048;

struct QuantiseParams {
  const u16* bits;  // row r starts at bits + r * row_stride
  u64 rows;
  u64 cols;
  u64 row_stride;
  u64 block_rows;
  u64 block_cols;
  u8* codes;      // rows x cols
  float* scales;  // one per scale block, row-major
  CodeKind kind;
};

}  // namespace rose::kernels
