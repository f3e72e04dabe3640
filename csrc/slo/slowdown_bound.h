// How much slower a serving step is while rollouts stay on the device beside it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "slo/conformal_bound.h"

namespace rose::slo {

// The upper quantile of actual / predicted over serving steps that ran beside rollouts. Without
// evidence it is the operator's `prior`, or half more than the largest ratio seen where that is
// more: only steps beside rollouts can show what they cost. A step that ran no slower counts too,
// but upper() is never under 1.
//
// Any thread; upper() is one load under a mutex, observe() a few microseconds. Nothing allocates.
class SlowdownBound {
 public:
  static Result<std::unique_ptr<SlowdownBound>> create(const ConformalConfig& config, double prior);

  // Learns actual / predicted of one such step, 0..1e12. On error nothing changes.
  Status observe(double ratio) noexcept;
  // What the next step's ratio exceeds with probability epsilon only.
  double upper() const noexcept;

  std::uint64_t observations() const noexcept;
  // Share of observed ratios that stayed within upper(); 1 when there are none.
  double coverage() const noexcept;

 private:
  SlowdownBound(const ConformalConfig& config, double prior) noexcept
      : prior_{prior}, bound_{config} {}
  double upper_locked() const noexcept;

  const double prior_;
  mutable std::mutex mutex_;  // guards all below
  ConformalBound bound_;
  std::uint64_t observations_{0};
  std::uint64_t misses_{0};
};

}  // namespace rose::slo
