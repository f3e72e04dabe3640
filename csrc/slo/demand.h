// What serving could need before a loan is back, from what was measured of it.
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
  std::uint32_t blocks_per_slab{0};  // serving's
  std::uint32_t block_tokens{0};
  std::uint32_t step_tokens{0};     // most tokens of one engine step; its prefills share it
  std::uint32_t request_tokens{0};  // longest prompt
  std::uint32_t burst_requests{0};  // that may arrive within T besides the largest one, at least
  double horizon_ms{0};             // T
  double memory_ms{0};              // for how long an arrival counts
  double epsilon{0};                // share of steps that may be faster, of prompts longer, 0..1
  std::uint32_t window{0};          // steps and prompts remembered, > 0
};

// The upper bounds of D(T): how fast serving decodes and prefills, how many requests arrive within
// T, and how long their prompts are.
//
// Speed: two bounds, and the higher one counts. Measured tokens per second of past steps say
// nothing of a load that has not been seen, a full chunk after a day of short prompts: for that,
// the latency model's mean is divided by how much faster than it said steps have been. Until enough
// steps have ended, that margin is kColdMargin.
//
// Arrivals: the most that came within any span as long as T, of those remembered. Of all token
// buckets that the remembered arrivals have kept to within T, this is the tightest: any other
// allows as many in T as came, at least. Certificates count the largest request besides, so there
// is always one more than was ever seen.
//
// Thread rule: any thread. One mutex, under which nothing else is called.
class Demand {
 public:
  // The certificate wants the most serving can do, the prior knows the mean: until steps were
  // measured, steps of the same shape are taken to vary by less than this factor.
  static constexpr double kColdMargin = 2.0;

  // InvalidArgument when a count that must be is 0, or a duration is out of range.
  static Result<std::unique_ptr<Demand>> create(const DemandConfig& config,
                                                std::shared_ptr<const LatencyModel> model,
                                                std::shared_ptr<const Clock> clock) noexcept;

  const DemandConfig& config() const noexcept { return config_; }

  // A request is here.
  void arrived(std::uint32_t prompt_tokens) noexcept;
  // A step took `actual_ms`, for which the model had said `predicted_ms`; one of no length says
  // nothing.
  void step_ended(double predicted_ms, double actual_ms, double decode_sequences,
                  double prefill_tokens) noexcept;

  // What `running` requests and those to come could need. What serving has is not in it.
  //
  // No loan counts as revocable: a slab that no step pins now can be pinned before serving asks,
  // and one on its way back has a block in use or a pin, or it would be back. No prefix counts as
  // cached: which request comes next is not known.
  Result<AdmissionTerms> terms(std::uint32_t running) noexcept;
  // D(T) with `running` requests, in serving's blocks.
  Result<std::uint64_t> blocks(std::uint32_t running) noexcept;

 private:
  // As many requests as `count` came within T, the last of them at `at_ns`.
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
  UpperBound speed_up_;  // over the model's mean
  UpperBound prompt_tokens_;
  std::deque<Nanoseconds> recent_ns_;  // arrivals within the last T
  // By their last arrival, with counts that descend: a span that is older and not larger than
  // another can never be the largest again.
  std::deque<Span> spans_;
};

}  // namespace rose::slo
