// The steps of serving's engine: each part of the core learns of a step in one fixed order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "compute/host_gate.h"
#include "coserving/certified_creditor.h"
#include "coserving/supply_watch.h"
#include "slo/certificate_log.h"
#include "slo/demand.h"
#include "slo/latency_model.h"
#include "slo/serving_state.h"

namespace rose::coserving {

// The parts of a device with a serving engine.
struct ServingParts {
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<compute::HostGate> gate;
  std::shared_ptr<slo::ServingState> state;
  std::shared_ptr<slo::LatencyModel> model;
  std::shared_ptr<slo::CertificateLog> log;
  std::shared_ptr<slo::Demand> demand;
  std::shared_ptr<SupplyWatch> supply;
  std::shared_ptr<CertifiedCreditor> creditor;
};

// The result of begin() or commit().
struct StepBegun {
  Nanoseconds from_ns{0};   // time of the call
  Nanoseconds until_ns{0};  // time of its end: serving has the device unless is_blocked
  Nanoseconds lent_ns{0};   // time for which rollouts ran first
  std::uint32_t passed{0};  // segments started so far
  bool is_blocked{false};   // a segment still runs behind the closed gate: wait for it
};

// A step that ran.
struct StepFacts {
  slo::Features batch;
  Nanoseconds began_ns{0};  // time at which serving got the device
  double lent_ms{0};        // time for which rollouts ran first
  double blocked_ms{0};     // time for which serving then waited for a segment
  std::uint32_t passed{0};  // segments that had started when that wait ended
};

struct StepEnded {
  Nanoseconds actual_ns{0};  // duration of the step
  bool is_short{false};      // serving needs slabs back: see SupplyWatch
};

// The life of a step:
//   begin()    counts the step, lends slack, closes the gate
//   commit()   fixes the batch, and lends the slack that it leaves; an engine that never calls it
//              lends in begin() alone
//   emitted()  records tokens, at any time
//   end()      records what the step was, and ends it;   abandon() ends it without a record
//
// While lending is off, begin() and commit() neither lend nor close the gate.
//
// 1. The step is counted before the gate closes. So no idle quantum is certified in a step, and one
//    that was certified before the step can no longer open the gate.
// 2. end() tells the parts in the order in which each needs the ones before it:
//      the latency model   its forecast is made before it learns, because the certificates of this
//                          step relied on that forecast. It does not learn from a step beside which
//                          a segment ran.
//      the log             the STEP pays for the delays that quanta have promised, so it precedes
//                          every quantum of the next step
//      the demand          its rates come from the forecast and from the model's present mean
//      the supply          is compared with the new demand
//      the state           last: from now on an idle quantum may be certified
//    The step ends even if a part fails. The first failure is returned.
//
// Thread rule: serving's thread calls begin() and commit(). Any thread may call the others.
class ServingSteps {
 public:
  // `slowdown`: as in the log's header. With an infinite one most steps follow a loan, so the model
  // learns from them as from any other step.
  explicit ServingSteps(ServingParts parts) noexcept;

  void set_lending(bool is) noexcept { is_lending_.store(is); }
  // True if begin() and commit() may wait while rollouts run first.
  bool lends_slack() const noexcept { return is_lending_.load() && parts_.creditor->lends_slack(); }

  // `batch`: the step's batch if it is fixed already. Without `lends` the gate is only closed.
  StepBegun begin(const std::optional<slo::CommittedBatch>& batch, bool lends) noexcept;
  StepBegun commit(const std::optional<slo::CommittedBatch>& batch) noexcept;
  // As ServingState::emitted(). A token is a sign of life of the serving host.
  void emitted(std::span<const std::uint32_t> slots, bool is_late) noexcept;
  Result<StepEnded> end(const StepFacts& step) noexcept;
  void abandon() noexcept { parts_.state->step_ended(); }

 private:
  StepBegun lend(const std::optional<slo::CommittedBatch>& batch, bool lends) noexcept;
  Result<bool> record(const StepFacts& step, double actual_ms) noexcept;
  Result<slo::Forecast> learn(const StepFacts& step, double actual_ms) noexcept;

  const ServingParts parts_;
  std::atomic<bool> is_lending_{false};
};

}  // namespace rose::coserving
