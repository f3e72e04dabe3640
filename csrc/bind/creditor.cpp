// Joins compute and slo: serving's state closes the gate, certificates open it.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/histogram.h"
#include "bind/clock.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "compute/creditor.h"
#include "compute/slack_lender.h"
#include "slo/quantum.h"

namespace rose::bind {

namespace py = pybind11;
using compute::CloseReason;
using compute::Creditor;
using compute::HostGate;
using slo::CertificateLog;
using slo::HarvestMode;
using slo::LatencyModel;
using slo::QuantumCertifier;
using slo::QuantumRefusal;
using slo::ServingState;

namespace {

class GateListener final : public slo::ServingListener {
 public:
  GateListener(std::shared_ptr<HostGate> gate, bool closes) noexcept
      : gate_{std::move(gate)}, closes_{closes} {}

  void busy() noexcept override {
    if (!closes_) return;
    const bool was_open = gate_->is_open();
    gate_->close(CloseReason::kArrival);
    gate_->arrived();
    // A thread that lends slack sleeps until the slack ends, and this arrival ends it.
    if (was_open) gate_->ring_demand();
  }
  void idle() noexcept override { gate_->ring_demand(); }

 private:
  std::shared_ptr<HostGate> gate_;
  bool closes_;
};

// Range of the histogram of serving's token times: no model's step is shorter, and no target is
// longer. Values outside count in the first or last bin.
constexpr Nanoseconds kShortestTokenNs = 100'000;
constexpr Nanoseconds kLongestTokenNs = 100'000'000'000;

std::vector<std::pair<Nanoseconds, std::uint64_t>> counts_of(const Histogram& tokens) {
  std::vector<std::pair<Nanoseconds, std::uint64_t>> out;
  for (const auto& [upper_ns, at_most] : tokens.counts(kShortestTokenNs, kLongestTokenNs)) {
    out.emplace_back(upper_ns, at_most);
  }
  return out;
}

struct PolicyConfig {
  double segment_prior_ms;  // estimate of a segment's duration before the first one is measured
  double segment_share;     // share of recent segments that are no longer than the estimate
  Nanoseconds retry_ns;
};

// Turns a certificate into credit. Two policies share a certifier: one for the creditor's thread,
// and one for serving's thread.
class CertifiedPolicy final : public compute::CreditPolicy {
 public:
  CertifiedPolicy(std::shared_ptr<const HostGate> gate, std::shared_ptr<QuantumCertifier> certifier,
                  PolicyConfig config, bool is_servings) noexcept
      : gate_{std::move(gate)},
        certifier_{std::move(certifier)},
        config_{config},
        is_servings_{is_servings} {}

  compute::CreditDecision decide(const compute::CreditRequest& request) noexcept override {
    auto grant = ask(request, segment_upper_ms());
    if (grant.segments == 0 && is_starved(request)) {
      grant = ask(request, config_.segment_prior_ms, 1);
    }
    return {
        .segments = grant.segments, .retry_after_ns = config_.retry_ns, .until_ns = grant.until_ns};
  }

  // Sets the committed batch for the next decisions of this thread.
  void commit(const std::optional<slo::CommittedBatch>& batch) noexcept { committed_ = batch; }

  double segment_upper_ms() const noexcept {
    const Nanoseconds recent_ns = gate_->recent_segment_ns(config_.segment_share);
    return recent_ns > 0 ? static_cast<double>(recent_ns) / 1e6 : config_.segment_prior_ms;
  }

 private:
  // While no request is live, each quantum has mode idle, whichever thread asks.
  HarvestMode mode_of_now() const noexcept {
    if (certifier_->serving().pending() == 0) return HarvestMode::kIdle;
    const bool is_slack = is_servings_ && certifier_->header().may(HarvestMode::kSlack);
    return is_slack ? HarvestMode::kSlack : HarvestMode::kIdle;
  }

  slo::QuantumGrant ask(const compute::CreditRequest& request, double segment_ms,
                        std::uint32_t most = ~std::uint32_t{0}) noexcept {
    return certifier_->decide({.mode = mode_of_now(),
                               .close_epoch = request.close_epoch,
                               .passed = request.passed,
                               .outstanding = request.outstanding,
                               .segment_upper_ms = segment_ms,
                               .most = most,
                               .is_request_expected = gate_->expects_arrival(),
                               .committed = committed_});
  }

  // If recent segments were too long for the targets, every further segment is refused, even if the
  // long segments were exceptions. So after a while, when serving is idle, a single segment may run
  // with the prior as its estimate.
  bool is_starved(const compute::CreditRequest& request) const noexcept {
    return request.outstanding == 0 && mode_of_now() == HarvestMode::kIdle &&
           certifier_->last_refusal() == QuantumRefusal::kSloAtRisk &&
           gate_->since_segment_ns() > compute::DurationRing::kRecentNs;
  }

  std::shared_ptr<const HostGate> gate_;
  std::shared_ptr<QuantumCertifier> certifier_;
  PolicyConfig config_;
  bool is_servings_;
  std::optional<slo::CommittedBatch> committed_;  // set only in the policy of serving's thread
};

// A creditor and a lender of slack, with their policies and one certifier.
class CertifiedCreditor {
 public:
  CertifiedCreditor(const std::shared_ptr<HostGate>& gate,
                    const std::shared_ptr<QuantumCertifier>& certifier, PolicyConfig policy,
                    const std::shared_ptr<const Clock>& clock, compute::CreditorConfig config,
                    std::shared_ptr<compute::Watchdog> watchdog)
      : gate_{gate},
        certifier_{certifier},
        policy_{std::make_shared<CertifiedPolicy>(gate, certifier, policy, false)},
        slack_policy_{std::make_shared<CertifiedPolicy>(gate, certifier, policy, true)},
        creditor_{gate, policy_, clock, config, std::move(watchdog)},
        slack_{gate,
               slack_policy_,
               clock,
               {.max_segments = config.max_segments,
                .start_ns = std::max<Nanoseconds>(
                    static_cast<Nanoseconds>(certifier->header().signal_ms * 1e6), kStartNs),
                .has_credit = config.has_credit}} {}

  Creditor& creditor() noexcept { return creditor_; }
  const QuantumCertifier& certifier() const noexcept { return *certifier_; }
  const CertifiedPolicy& policy() const noexcept { return *policy_; }

  std::optional<compute::Offer> offer(const std::optional<slo::CommittedBatch>& batch) noexcept {
    slack_policy_->commit(batch);
    return may(HarvestMode::kSlack) ? slack_.offer() : std::nullopt;
  }
  void stop() noexcept {
    slack_.set_stopped(true);
    creditor_.stop();
  }
  Status start() noexcept {
    slack_.set_stopped(false);
    return creditor_.start();
  }
  void withdraw() noexcept { slack_.withdraw(); }
  // Records the certificate that would be granted now, without granting it.
  std::uint32_t certify() noexcept {
    const std::scoped_lock one_decides{gate_->granting()};
    CertifiedPolicy& policy = lends_slack() ? *slack_policy_ : *policy_;
    return policy.decide({.close_epoch = gate_->close_epoch(), .passed = gate_->passed()}).segments;
  }
  bool lends_slack() const noexcept { return may(HarvestMode::kSlack); }
  // Must be called before each step of serving. Lends serving's slack, then closes the gate.
  // Returns the time for which it lent.
  Nanoseconds before_step(const std::optional<slo::CommittedBatch>& batch) noexcept {
    slack_policy_->commit(batch);
    const Nanoseconds lent_ns = may(HarvestMode::kSlack) ? slack_.lend() : 0;
    close_for_step();
    return lent_ns;
  }
  // Closes the gate even if it is closed already, so that an opening decided earlier fails.
  void close_for_step() noexcept {
    gate_->close(gate_->is_open() ? CloseReason::kStep : gate_->close_reason());
  }

 private:
  static constexpr Nanoseconds kStartNs = 1'000'000;

  bool may(HarvestMode mode) const noexcept { return certifier_->header().may(mode); }

  std::shared_ptr<HostGate> gate_;
  std::shared_ptr<QuantumCertifier> certifier_;
  std::shared_ptr<CertifiedPolicy> policy_;
  std::shared_ptr<CertifiedPolicy> slack_policy_;
  Creditor creditor_;
  compute::SlackLender slack_;
};

std::shared_ptr<ServingState> create_state(std::shared_ptr<CertificateLog> log,
                                           std::shared_ptr<HostGate> gate) {
  std::shared_ptr<slo::ServingListener> listener;
  if (gate != nullptr) {
    listener = std::make_shared<GateListener>(std::move(gate),
                                              log->header().has(slo::Mechanism::kEarlyClose));
  }
  return std::make_shared<ServingState>(std::move(log), std::move(listener));
}

slo::Features features_of(const std::array<double, 3>& values, const char* name) {
  for (const double value : values) {
    if (!(value >= 0 && value <= 1e9)) {
      raise(Status::invalid_argument(std::string{name} + " must hold values in 0..1e9, got " +
                                     std::to_string(value)));
    }
  }
  return {.decode_sequences = values[0], .context_tokens = values[1], .prefill_tokens = values[2]};
}

std::tuple<double, double, double> values_of(const slo::Features& features) {
  return {features.decode_sequences, features.context_tokens, features.prefill_tokens};
}

// Python's names of shapes and targets.
const char* name_of(slo::BindingShape shape) {
  constexpr std::array<const char*, 3> kNames{"segment", "step", "chunk"};
  return kNames[static_cast<std::size_t>(shape)];
}

const char* name_of(slo::BindingTarget target) {
  constexpr std::array<const char*, 5> kNames{"blocking", "ttft", "tpot", "deadline", "budget"};
  return kNames[static_cast<std::size_t>(target)];
}

using Batch = std::optional<std::array<double, 3>>;

// `slots` must outlive the result.
std::optional<slo::CommittedBatch> batch_of(const Batch& values,
                                            const std::vector<std::uint32_t>& slots) {
  if (!values) return std::nullopt;
  return slo::CommittedBatch{.features = features_of(*values, "batch"), .slots = slots};
}

std::unique_ptr<CertifiedCreditor> create_creditor(
    const std::shared_ptr<HostGate>& gate, std::shared_ptr<ServingState> state,
    std::shared_ptr<LatencyModel> model, std::shared_ptr<CertificateLog> log,
    const std::array<double, 3>& largest_step, const std::array<double, 3>& largest_chunk,
    double segment_prior_ms, double segment_share, double poll_ms, double retry_ms,
    std::shared_ptr<compute::Watchdog> watchdog, std::shared_ptr<Clock> clock) {
  if (!(segment_prior_ms > 0)) {
    raise(
        Status::invalid_argument("segment_prior_ms must be > 0, got " + text_of(segment_prior_ms)));
  }
  if (!(segment_share > 0 && segment_share <= 1)) {
    raise(Status::invalid_argument("segment_share must lie in (0, 1], got " +
                                   text_of(segment_share)));
  }
  if (!(poll_ms > 0)) {
    raise(Status::invalid_argument("poll_ms must be > 0, got " + text_of(poll_ms)));
  }
  const slo::LogHeader& header = log->header();
  const std::uint32_t max_segments = header.max_segments;
  const bool has_credit = header.has(slo::Mechanism::kCredit);
  if (max_segments == 0) {
    raise(Status::invalid_argument("the log's max_segments must be > 0, got 0"));
  }
  auto certifier = std::make_shared<QuantumCertifier>(
      std::move(state), std::move(model), std::move(log),
      slo::NextRequest{.largest_step = features_of(largest_step, "largest_step"),
                       .largest_chunk = features_of(largest_chunk, "largest_chunk")});
  return std::make_unique<CertifiedCreditor>(
      gate, std::move(certifier),
      PolicyConfig{.segment_prior_ms = segment_prior_ms,
                   .segment_share = segment_share,
                   .retry_ns = ns_of_ms(retry_ms, "retry_ms")},
      clock_or_boot(std::move(clock)),
      compute::CreditorConfig{.max_segments = max_segments,
                              .poll_ns = ns_of_ms(poll_ms, "poll_ms"),
                              .has_credit = has_credit},
      std::move(watchdog));
}

}  // namespace

void bind_serving_state(py::module_& module) {
  // The state may be the last owner of the log, and ~CertificateLog joins a thread.
  UnlockedClass<ServingState, std::shared_ptr<ServingState>>(module, "ServingState")
      .def(py::init(&create_state), py::arg("log").none(false), py::kw_only(),
           py::arg("gate") = py::none())
      .def("arrived", &ServingState::arrived, py::kw_only(), py::arg("tokens"),
           py::arg("prefilled") = false)
      .def(
          "emitted",
          [](ServingState& self, const std::vector<std::uint32_t>& slots, bool is_late) {
            return self.emitted(slots, is_late);
          },
          py::arg("slots"), py::kw_only(), py::arg("is_late") = false)
      .def("finished", &ServingState::finished, py::arg("slot"))
      .def("beat", &ServingState::beat)
      .def("step_began", &ServingState::step_began)
      .def("step_ended", &ServingState::step_ended)
      .def_property_readonly("pending", &ServingState::pending)
      .def_property_readonly("waiting", &ServingState::waiting)
      .def_property_readonly("running",
                             [](const ServingState& self) { return self.load().running; })
      .def_property_readonly("context_tokens",
                             [](const ServingState& self) { return self.load().context_tokens; })
      .def_property_readonly(
          "first_tokens",
          [](const ServingState& self) { return counts_of(self.token_times().first); })
      .def_property_readonly("later_tokens", [](const ServingState& self) {
        return counts_of(self.token_times().later);
      });
}

void bind_creditor(py::module_& module) {
  py::native_enum<HarvestMode>(module, "HarvestMode", "enum.Enum")
      .value("IDLE", HarvestMode::kIdle)
      .value("SLACK", HarvestMode::kSlack)
      .finalize();
  py::native_enum<QuantumRefusal>(module, "QuantumRefusal", "enum.Enum")
      .value("NONE", QuantumRefusal::kNone)
      .value("SERVING_BUSY", QuantumRefusal::kServingBusy)
      .value("NO_HEARTBEAT", QuantumRefusal::kNoHeartbeat)
      .value("SLO_AT_RISK", QuantumRefusal::kSloAtRisk)
      .value("ENOUGH", QuantumRefusal::kEnough)
      .value("LOG_BROKEN", QuantumRefusal::kLogBroken)
      .value("NO_EVIDENCE", QuantumRefusal::kNoEvidence)
      .value("BUDGET_SPENT", QuantumRefusal::kBudgetSpent)
      .finalize();

  py::class_<slo::Binding>(module, "Binding")
      .def_property_readonly("shape", [](const slo::Binding& self) { return name_of(self.shape); })
      .def_property_readonly("target",
                             [](const slo::Binding& self) { return name_of(self.target); })
      .def_readonly("predicted_ms", &slo::Binding::predicted_ms)
      .def_readonly("upper_ms", &slo::Binding::upper_ms)
      .def_readonly("delay_ms", &slo::Binding::delay_ms)
      .def_readonly("target_ms", &slo::Binding::target_ms);

  py::class_<compute::Offer>(module, "Offer")
      .def_readonly("segments", &compute::Offer::segments)
      .def_readonly("close_epoch", &compute::Offer::close_epoch)
      .def_readonly("until_ns", &compute::Offer::until_ns);

  // ~Creditor joins its thread. The thread never takes the GIL, and the join must not hold the GIL.
  UnlockedClass<CertifiedCreditor>(module, "Creditor")
      .def(py::init(&create_creditor), py::arg("gate").none(false), py::arg("state").none(false),
           py::arg("model").none(false), py::arg("log").none(false), py::kw_only(),
           py::arg("largest_step"), py::arg("largest_chunk"), py::arg("segment_prior_ms"),
           py::arg("segment_share"), py::arg("poll_ms"), py::arg("retry_ms"),
           py::arg("watchdog") = py::none(), py::arg("clock") = py::none())
      .def("start", [](CertifiedCreditor& self) { check(self.start()); })
      .def(
          "stop", [](CertifiedCreditor& self) { self.stop(); }, gil_released())
      .def("notify", [](CertifiedCreditor& self) { self.creditor().notify(); })
      .def("certify", &CertifiedCreditor::certify)
      .def("look", [](CertifiedCreditor& self) { return self.creditor().look(); })
      .def(
          "offer",
          [](CertifiedCreditor& self, const Batch& batch, const std::vector<std::uint32_t>& slots) {
            return self.offer(batch_of(batch, slots));
          },
          py::arg("batch") = py::none(), py::arg("slots") = std::vector<std::uint32_t>{})
      .def("withdraw", &CertifiedCreditor::withdraw)
      // If slack is not lent, the call takes less time than a release of the GIL.
      .def(
          "before_step",
          [](CertifiedCreditor& self, const Batch& batch, const std::vector<std::uint32_t>& slots) {
            const auto committed = batch_of(batch, slots);
            if (!self.lends_slack()) return static_cast<double>(self.before_step(committed)) / 1e6;
            const Nanoseconds lent_ns = unlocked([&] { return self.before_step(committed); });
            return static_cast<double>(lent_ns) / 1e6;
          },
          py::arg("batch") = py::none(), py::arg("slots") = std::vector<std::uint32_t>{})
      .def("close_for_step", &CertifiedCreditor::close_for_step)
      .def(
          "granted",
          [](const CertifiedCreditor& self, HarvestMode mode) {
            return self.certifier().granted(mode);
          },
          py::arg("mode"))
      .def_property_readonly("is_running",
                             [](CertifiedCreditor& self) { return self.creditor().is_running(); })
      .def_property_readonly("grants",
                             [](CertifiedCreditor& self) { return self.creditor().grants(); })
      .def_property_readonly("refusals",
                             [](CertifiedCreditor& self) { return self.creditor().refusals(); })
      .def_property_readonly(
          "last_refusal",
          [](const CertifiedCreditor& self) { return self.certifier().last_refusal(); })
      .def(
          "refused",
          [](const CertifiedCreditor& self, QuantumRefusal why) {
            return self.certifier().refused(why);
          },
          py::arg("why"))
      .def(
          "refused_s",
          [](const CertifiedCreditor& self, QuantumRefusal why) {
            return static_cast<double>(self.certifier().refused_ns(why)) / 1e9;
          },
          py::arg("why"))
      .def_property_readonly("granted_s",
                             [](const CertifiedCreditor& self) {
                               return static_cast<double>(self.certifier().granted_ns()) / 1e9;
                             })
      .def_property_readonly(
          "binding", [](const CertifiedCreditor& self) { return self.certifier().binding(); })
      .def_property_readonly("largest_step",
                             [](const CertifiedCreditor& self) {
                               return values_of(self.certifier().next().largest_step);
                             })
      .def_property_readonly("largest_chunk",
                             [](const CertifiedCreditor& self) {
                               return values_of(self.certifier().next().largest_chunk);
                             })
      .def_property_readonly("segment_upper_ms", [](const CertifiedCreditor& self) {
        return self.policy().segment_upper_ms();
      });
}

}  // namespace rose::bind
