// Upper bound of serving's demand within T, the longest time of a revocation, from measurements.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "base/status.h"
#include "slo/admission.h"
#include "slo/latency_model.h"
#include "slo/upper_bound.h"

namespace rose::slo {

struct DemandConfig {
  std::uint32_t blocks_per_slab{0};  // blocks of serving in a slab
  std::uint32_t block_tokens{0};
  std::uint32_t step_tokens{0};     // most tokens of one engine step, all its prefills together
  std::uint32_t request_tokens{0};  // longest prompt
  // Fewest further arrivals within T to count, besides the largest request.
  std::uint32_t burst_requests{0};
  double horizon_ms{0};  // T
  double memory_ms{0};   // time for which an arrival is remembered
  // Share, in (0, 1], of steps that may be faster than the bound on rates. Also the share of
  // prompts that may be longer than the bound on lengths.
  double epsilon{0};
  std::uint32_t window{0};  // number of remembered steps and prompts, > 0
};

// The measured terms of D(T), the blocks that serving may need within T: the rates of decode and
// prefill, the number of requests that arrive within T, and the lengths of their prompts.
//
// Rates: the higher of two bounds. One is a quantile of the measured tokens per second. It does not
// cover a load that was not seen yet, such as a full chunk after a day of short prompts. The other
// bound covers such loads: it divides the mean of the latency model by a quantile of the speed-up
// (predicted over actual duration), or by kColdMargin until enough steps have ended.
//
// Arrivals: the largest number of remembered arrivals within any interval of length T. Every token
// bucket that fits the remembered arrivals allows at least this number. Certificates also count the
// largest request, so they always allow one arrival more than were ever seen.
//
// Thread rule: any thread. One mutex; nothing else is called under it.
class Demand {
 public:
  // Until enough steps were measured, a step is assumed to be at most this many times faster than
  // the latency model predicts.
  static constexpr double kColdMargin = 2.0;

  // InvalidArgument for a count of 0 that must be positive, or a duration out of range.
  static Result<std::unique_ptr<Demand>> create(const DemandConfig& config,
                                                std::shared_ptr<const LatencyModel> model,
                                                std::shared_ptr<const Clock> clock) noexcept;

  const DemandConfig& config() const noexcept { return config_; }

  // Counts the arrival of a request.
  void arrived(std::uint32_t prompt_tokens) noexcept;
  // Observes a step with its duration and the model's prediction. Steps without a duration are
  // ignored.
  void step_ended(double predicted_ms, double actual_ms, double decode_sequences,
                  double prefill_tokens) noexcept;

  // Returns the demand of `running` requests and of those that may arrive. The terms of the supply
  // stay 0.
  //
  // No loan counts as revocable: a slab without a pin can be pinned before serving needs it, and a
  // slab that is being revoked has a block in use or a pin. No prefix counts as cached, because the
  // next request is unknown.
  Result<AdmissionTerms> terms(std::uint32_t running) noexcept;
  // Returns D(T) with `running` requests, in blocks of serving.
  Result<std::uint64_t> blocks(std::uint32_t running) noexcept;

 private:
  // `count` requests arrived within T, the last one at `at_ns`.
  struct Span {
    Nanoseconds at_ns;
    std::uint32_t count;
  };

  Demand(const DemandConfig& config, std::shared_ptr<const LatencyModel> model,
         std::shared_ptr<const Clock> clock) noexcept;
  // Both need the mutex.
  void forget(Nanoseconds now_ns) noexcept;
  void expect_arrivals(AdmissionTerms& terms) const noexcept;

  const DemandConfig config_;
  const std::shared_ptr<const LatencyModel> model_;
  const std::shared_ptr<const Clock> clock_;

  std::mutex mutex_;  // guards all of the below
  UpperBound decode_tokens_per_s_;
  UpperBound prefill_tokens_per_s_;
  UpperBound speed_up_;  // predicted over actual duration of steps
  UpperBound prompt_tokens_;
  std::deque<Nanoseconds> recent_ns_;  // arrivals within the last T
  // Ordered by last arrival, with descending counts: an older span that is not larger than a newer
  // span can never be the maximum again, so it is dropped.
  std::deque<Span> spans_;
};

}  // namespace rose::slo
