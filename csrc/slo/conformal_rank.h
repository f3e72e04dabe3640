// The rank of split conformal prediction, on which the bounds of slo rest.
#pragma once

#include <cmath>
#include <cstdint>

namespace rose::slo {

// Returns the rank k of split conformal prediction (arXiv 2107.07511). If all orders of `count`
// scores and the next score are equally likely, the next score exceeds the k-th smallest with
// probability at most `level`. A rank above `count` means that there are too few scores for a
// bound.
inline double conformal_rank(std::uint32_t count, double level) noexcept {
  // Rounding can make the product slightly larger than its exact value. Where that value is an
  // integer, ceil() would be too large by 1 without the subtraction.
  return std::ceil((static_cast<double>(count) + 1) * (1 - level) - 1e-9);
}

}  // namespace rose::slo
