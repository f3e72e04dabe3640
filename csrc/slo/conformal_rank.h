// The rank behind every bound of this room.
#pragma once

#include <cmath>
#include <cstdint>

namespace rose::slo {

// The rank k of split conformal prediction (arXiv 2107.07511). If all orders of `count` scores and
// the next one are equally likely, the next one exceeds the k-th smallest with probability at most
// `level`. A rank above `count` means that there are too few scores for a bound.
inline double conformal_rank(std::uint32_t count, double level) noexcept {
  // In doubles some products exceed the integer that they stand for by a rounding error.
  return std::ceil((static_cast<double>(count) + 1) * (1 - level) - 1e-9);
}

}  // namespace rose::slo
