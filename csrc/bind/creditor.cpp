// Where compute and slo meet: serving's state closes the gate, certificates open it.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "bind/clock.h"
#include "bind/status.h"
#include "compute/creditor.h"
#include "slo/quantum.h"

namespace rose::bind {

namespace py = pybind11;
using compute::CloseReason;
using compute::Creditor;
using compute::HostGate;
using slo::CertificateLog;
using slo::LatencyModel;
using slo::QuantumCertifier;
using slo::QuantumRefusal;
using slo::ServingState;

namespace {

class GateListener final : public slo::ServingListener {
 public:
  explicit GateListener(std::shared_ptr<HostGate> gate) noexcept : gate_{std::move(gate)} {}
  void busy() noexcept override { gate_->close(CloseReason::kArrival); }
  void idle() noexcept override { gate_->ring_demand(); }

 private:
  std::shared_ptr<HostGate> gate_;
};

struct PolicyConfig {
  double segment_prior_ms;  // before the gate has seen a segment
  double segment_share;     // of recent segments that are no longer than the estimate
  Nanoseconds retry_ns;
};

// Turns a certificate into credit.
class CertifiedPolicy final : public compute::CreditPolicy {
 public:
  CertifiedPolicy(std::shared_ptr<const HostGate> gate, std::shared_ptr<QuantumCertifier> certifier,
                  PolicyConfig config) noexcept
      : gate_{std::move(gate)}, certifier_{std::move(certifier)}, config_{config} {}

  compute::Decision decide(const compute::CreditRequest& request) noexcept override {
    std::uint32_t segments = ask(request, segment_upper_ms());
    if (segments == 0 && is_starved(request)) segments = ask(request, config_.segment_prior_ms);
    return {.segments = segments, .retry_after_ns = config_.retry_ns};
  }

  double segment_upper_ms() const noexcept {
    const Nanoseconds recent_ns = gate_->recent_segment_ns(config_.segment_share);
    return recent_ns > 0 ? static_cast<double>(recent_ns) / 1e6 : config_.segment_prior_ms;
  }

 private:
  std::uint32_t ask(const compute::CreditRequest& request, double segment_ms) noexcept {
    return certifier_->decide({.close_epoch = request.close_epoch,
                               .passed = request.passed,
                               .outstanding = request.outstanding,
                               .segment_upper_ms = segment_ms});
  }

  // Segments that were too long for the targets are never followed by others that could show
  // they were an exception. After a while the prior counts again.
  bool is_starved(const compute::CreditRequest& request) const noexcept {
    return request.outstanding == 0 && certifier_->last_refusal() == QuantumRefusal::kSloAtRisk &&
           gate_->since_segment_ns() > compute::DurationRing::kRecentNs;
  }

  std::shared_ptr<const HostGate> gate_;
  std::shared_ptr<QuantumCertifier> certifier_;
  PolicyConfig config_;
};

// A creditor with its policy and certifier.
class CertifiedCreditor {
 public:
  CertifiedCreditor(const std::shared_ptr<HostGate>& gate,
                    std::shared_ptr<QuantumCertifier> certifier, PolicyConfig policy,
                    std::shared_ptr<const Clock> clock, compute::CreditorConfig config,
                    std::shared_ptr<compute::Watchdog> watchdog)
      : certifier_{std::move(certifier)},
        policy_{std::make_shared<CertifiedPolicy>(gate, certifier_, policy)},
        creditor_{gate, policy_, std::move(clock), config, std::move(watchdog)} {}

  Creditor& creditor() noexcept { return creditor_; }
  const QuantumCertifier& certifier() const noexcept { return *certifier_; }
  const CertifiedPolicy& policy() const noexcept { return *policy_; }

 private:
  std::shared_ptr<QuantumCertifier> certifier_;
  std::shared_ptr<CertifiedPolicy> policy_;
  Creditor creditor_;
};

std::shared_ptr<ServingState> create_state(std::shared_ptr<CertificateLog> log,
                                           std::shared_ptr<HostGate> gate) {
  std::shared_ptr<slo::ServingListener> listener;
  if (gate != nullptr) listener = std::make_shared<GateListener>(std::move(gate));
  return std::make_shared<ServingState>(std::move(log), std::move(listener));
}

slo::Features features_of(const std::array<double, 3>& values, const char* name) {
  for (const double value : values) {
    if (!(value >= 0 && value <= 1e9)) {
      raise(Status::invalid_argument(std::string{name} + " must hold values in 0..1e9"));
    }
  }
  return {.decode_sequences = values[0], .context_tokens = values[1], .prefill_tokens = values[2]};
}

std::unique_ptr<CertifiedCreditor> create_creditor(
    const std::shared_ptr<HostGate>& gate, std::shared_ptr<ServingState> state,
    std::shared_ptr<LatencyModel> model, std::shared_ptr<CertificateLog> log,
    const std::array<double, 3>& largest_step, const std::array<double, 3>& largest_chunk,
    double segment_prior_ms, double segment_share, double poll_ms, double retry_ms,
    std::shared_ptr<compute::Watchdog> watchdog, std::shared_ptr<Clock> clock) {
  if (!(segment_prior_ms > 0)) {
    raise(Status::invalid_argument("segment_prior_ms must be > 0"));
  }
  if (!(segment_share > 0 && segment_share <= 1)) {
    raise(Status::invalid_argument("segment_share must lie in (0, 1]"));
  }
  if (!(poll_ms > 0)) raise(Status::invalid_argument("poll_ms must be > 0"));
  const std::uint32_t max_segments = log->header().max_segments;
  if (max_segments == 0) raise(Status::invalid_argument("the log's max_segments must be > 0"));
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
                              .poll_ns = ns_of_ms(poll_ms, "poll_ms")},
      std::move(watchdog));
}

}  // namespace

void bind_creditor(py::module_& module) {
  py::native_enum<QuantumRefusal>(module, "QuantumRefusal", "enum.Enum")
      .value("NONE", QuantumRefusal::kNone)
      .value("SERVING_BUSY", QuantumRefusal::kServingBusy)
      .value("NO_HEARTBEAT", QuantumRefusal::kNoHeartbeat)
      .value("SLO_AT_RISK", QuantumRefusal::kSloAtRisk)
      .value("ENOUGH", QuantumRefusal::kEnough)
      .value("LOG_BROKEN", QuantumRefusal::kLogBroken)
      .finalize();

  // The state may be the last owner of the log, whose destructor joins a thread.
  py::class_<ServingState, std::shared_ptr<ServingState>>(module, "ServingState",
                                                          py::release_gil_before_calling_cpp_dtor())
      .def(py::init(&create_state), py::arg("log").none(false), py::kw_only(),
           py::arg("gate") = py::none())
      .def("arrived", &ServingState::arrived, py::kw_only(), py::arg("tokens"))
      .def("finished", &ServingState::finished)
      .def("beat", &ServingState::beat)
      .def_property_readonly("pending", &ServingState::pending);

  // ~Creditor joins its thread; that thread never wants the GIL, but a wait is a wait.
  py::class_<CertifiedCreditor>(module, "Creditor", py::release_gil_before_calling_cpp_dtor())
      .def(py::init(&create_creditor), py::arg("gate").none(false), py::arg("state").none(false),
           py::arg("model").none(false), py::arg("log").none(false), py::kw_only(),
           py::arg("largest_step"), py::arg("largest_chunk"), py::arg("segment_prior_ms"),
           py::arg("segment_share"), py::arg("poll_ms"), py::arg("retry_ms"),
           py::arg("watchdog") = py::none(), py::arg("clock") = py::none())
      .def("start", [](CertifiedCreditor& self) { check(self.creditor().start()); })
      .def(
          "stop", [](CertifiedCreditor& self) { self.creditor().stop(); },
          py::call_guard<py::gil_scoped_release>())
      .def("notify", [](CertifiedCreditor& self) { self.creditor().notify(); })
      .def_property_readonly("is_running",
                             [](CertifiedCreditor& self) { return self.creditor().is_running(); })
      .def_property_readonly("grants",
                             [](CertifiedCreditor& self) { return self.creditor().grants(); })
      .def_property_readonly("refusals",
                             [](CertifiedCreditor& self) { return self.creditor().refusals(); })
      .def_property_readonly("overtaken",
                             [](CertifiedCreditor& self) { return self.creditor().overtaken(); })
      .def_property_readonly(
          "last_refusal",
          [](const CertifiedCreditor& self) { return self.certifier().last_refusal(); })
      .def(
          "refused",
          [](const CertifiedCreditor& self, QuantumRefusal why) {
            return self.certifier().refused(why);
          },
          py::arg("why"))
      .def_property_readonly("segment_upper_ms", [](const CertifiedCreditor& self) {
        return self.policy().segment_upper_ms();
      });
}

}  // namespace rose::bind
