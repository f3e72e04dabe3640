// Serving's state and the certified creditor for Python.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/histogram.h"
#include "bind/clock.h"
#include "bind/features.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "coserving/certified_creditor.h"
#include "coserving/gate_listener.h"
#include "slo/quantum.h"

namespace rose::bind {

namespace py = pybind11;
using compute::HostGate;
using coserving::CertifiedCreditor;
using slo::CertificateLog;
using slo::HarvestMode;
using slo::LatencyModel;
using slo::QuantumRefusal;
using slo::ServingState;

namespace {

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

std::shared_ptr<ServingState> create_state(std::shared_ptr<CertificateLog> log,
                                           std::shared_ptr<HostGate> gate) {
  std::shared_ptr<slo::ServingListener> listener;
  if (gate != nullptr) {
    listener = std::make_shared<coserving::GateListener>(std::move(gate), log->header());
  }
  return std::make_shared<ServingState>(std::move(log), std::move(listener));
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

std::shared_ptr<CertifiedCreditor> create_creditor(
    const std::shared_ptr<HostGate>& gate, std::shared_ptr<ServingState> state,
    std::shared_ptr<LatencyModel> model, std::shared_ptr<CertificateLog> log,
    const FeatureValues& largest_step, const FeatureValues& largest_chunk, double segment_prior_ms,
    double segment_share, double poll_ms, double retry_ms,
    std::shared_ptr<compute::Watchdog> watchdog, std::shared_ptr<Clock> clock) {
  return take(CertifiedCreditor::create(
      gate, std::move(state), std::move(model), std::move(log),
      {.next = {.largest_step = features_of(largest_step, "largest_step"),
                .largest_chunk = features_of(largest_chunk, "largest_chunk")},
       .segments = {.prior_ms = segment_prior_ms, .share = segment_share},
       .retry_ns = ns_of_ms(retry_ms, "retry_ms"),
       .poll_ns = ns_of_ms(poll_ms, "poll_ms")},
      clock_or_boot(std::move(clock)), std::move(watchdog)));
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
      .value("TRIAL", HarvestMode::kTrial)
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
      .value("SEGMENT_TOO_LONG", QuantumRefusal::kSegmentTooLong)
      .finalize();

  py::class_<slo::Binding>(module, "Binding")
      .def_property_readonly("shape", [](const slo::Binding& self) { return name_of(self.shape); })
      .def_property_readonly("target",
                             [](const slo::Binding& self) { return name_of(self.target); })
      .def_readonly("predicted_ms", &slo::Binding::predicted_ms)
      .def_readonly("upper_ms", &slo::Binding::upper_ms)
      .def_readonly("delay_ms", &slo::Binding::delay_ms)
      .def_readonly("target_ms", &slo::Binding::target_ms);

  py::class_<slo::SegmentLimit>(module, "SegmentLimit")
      .def_readonly("measured_ms", &slo::SegmentLimit::measured_ms)
      .def_readonly("limit_ms", &slo::SegmentLimit::limit_ms);

  py::class_<coserving::SegmentWait>(module, "SegmentWait")
      .def_property_readonly("waited_ms",
                             [](const coserving::SegmentWait& self) {
                               return static_cast<double>(self.waited_ns) / 1e6;
                             })
      .def_readonly("has_ended", &coserving::SegmentWait::has_ended)
      .def_readonly("is_spent", &coserving::SegmentWait::is_spent);

  py::class_<compute::Offer>(module, "Offer")
      .def_readonly("segments", &compute::Offer::segments)
      .def_readonly("close_epoch", &compute::Offer::close_epoch)
      .def_readonly("until_ns", &compute::Offer::until_ns);

  // ~Creditor joins its thread. The thread never takes the GIL, and the join must not hold the GIL.
  UnlockedClass<CertifiedCreditor, std::shared_ptr<CertifiedCreditor>>(module, "Creditor")
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
      .def_property_readonly(
          "segment_upper_ms",
          [](const CertifiedCreditor& self) { return self.segments().length().upper_ms; })
      .def_property_readonly(
          "segment_limit",
          [](const CertifiedCreditor& self) { return self.certifier().segment_limit(); })
      // Waits for the running segment, at most for its certified length and the wait budget.
      .def(
          "wait_parked",
          [](CertifiedCreditor& self, std::uint32_t borrower) {
            return unlocked([&] { return self.segments().wait(borrower); });
          },
          py::kw_only(), py::arg("borrower"));
}

}  // namespace rose::bind
