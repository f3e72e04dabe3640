// The certificate log for Python.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "bind/clock.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "slo/certificate_log.h"
#include "slo/latency_model.h"

namespace rose::bind {

namespace py = pybind11;
using slo::CertificateLog;
using slo::Forecast;
using slo::RecordKind;

namespace {

std::shared_ptr<CertificateLog> create_log(
    const std::string& path, double ttft_ms, double tpot_ms, double epsilon, double signal_ms,
    double blocking_ms, double heartbeat_ttl_ms, std::uint32_t max_segments, std::uint32_t slabs,
    std::uint32_t partitions, std::uint32_t blocks_per_slab, std::uint32_t block_tokens,
    std::uint32_t max_request_tokens, std::uint32_t max_batch_tokens, std::uint32_t burst_requests,
    double revoke_ms, double slowdown, std::uint32_t without, double wait_budget_ms,
    double park_wait_ms, std::shared_ptr<Clock> clock) {
  for (const double ms : {ttft_ms, tpot_ms, signal_ms, blocking_ms, revoke_ms, park_wait_ms}) {
    if (!(std::isfinite(ms) && ms >= 0)) {
      raise(Status::invalid_argument(
          "ttft_ms, tpot_ms, signal_ms, blocking_ms, revoke_ms and park_wait_ms must be finite and "
          ">= 0, got " +
          std::to_string(ms)));
    }
  }
  if (!(slowdown >= 0)) {
    raise(Status::invalid_argument("slowdown must be >= 0, got " + std::to_string(slowdown)));
  }
  return take(
      CertificateLog::create(path,
                             {.ttft_ms = ttft_ms,
                              .tpot_ms = tpot_ms,
                              .epsilon = epsilon,
                              .signal_ms = signal_ms,
                              .blocking_ms = blocking_ms,
                              .heartbeat_ttl_ns = ns_of_ms(heartbeat_ttl_ms, "heartbeat_ttl_ms"),
                              .max_segments = max_segments,
                              .slabs = slabs,
                              .partitions = partitions,
                              .blocks_per_slab = blocks_per_slab,
                              .block_tokens = block_tokens,
                              .max_request_tokens = max_request_tokens,
                              .max_batch_tokens = max_batch_tokens,
                              .burst_requests = burst_requests,
                              .revoke_ms = revoke_ms,
                              .slowdown = slowdown,
                              .without = without,
                              .wait_budget_ns = ns_of_ms(wait_budget_ms, "wait_budget_ms"),
                              .park_wait_ms = park_wait_ms},
                             clock_or_boot(std::move(clock))));
}

bool append_step(CertificateLog& log, const Forecast& forecast, double actual_ms,
                 double decode_sequences, double context_tokens, double prefill_tokens,
                 double blocked_ms, double lent_ms, std::int64_t began_ns) {
  return log.append(slo::StepRecord{.predicted_ms = forecast.predicted_ms,
                                    .upper_ms = forecast.upper_ms,
                                    .actual_ms = actual_ms,
                                    .decode_sequences = decode_sequences,
                                    .context_tokens = context_tokens,
                                    .prefill_tokens = prefill_tokens,
                                    .blocked_ms = blocked_ms,
                                    .lent_ms = lent_ms,
                                    .began_ns = began_ns});
}

bool append_revoke_begun(CertificateLog& log, std::int64_t deadline_ns, std::uint32_t slabs) {
  CertificateLog::Section section{log};
  // The caller read its clock earlier, so a short deadline may have passed.
  return section.append(slo::RevokeBegunRecord{
      .deadline_ns = std::max(deadline_ns, section.now_ns()), .slabs = slabs, .zero = 0});
}

void bind_log(py::module_& module) {
  py::native_enum<RecordKind>(module, "RecordKind", "enum.Enum")
      .value("START", RecordKind::kStart)
      .value("ARRIVED", RecordKind::kArrived)
      .value("FINISHED", RecordKind::kFinished)
      .value("QUANTUM", RecordKind::kQuantum)
      .value("ADMISSION", RecordKind::kAdmission)
      .value("MOVE", RecordKind::kMove)
      .value("REVOKE_BEGUN", RecordKind::kRevokeBegun)
      .value("STEP", RecordKind::kStep)
      .value("GAVE_BACK", RecordKind::kGaveBack)
      .value("END", RecordKind::kEnd)
      .value("TOKENS", RecordKind::kTokens)
      .value("FORCED", RecordKind::kForced)
      .value("WAITED", RecordKind::kWaited)
      .value("EVICTED", RecordKind::kEvicted)
      .finalize();

  // ~CertificateLog writes to the disk and joins a thread, so it must not hold the GIL.
  UnlockedClass<CertificateLog, std::shared_ptr<CertificateLog>>(module, "CertificateLog")
      .def(py::init(&create_log), py::arg("path"), py::kw_only(), py::arg("ttft_ms"),
           py::arg("tpot_ms"), py::arg("epsilon"), py::arg("signal_ms"), py::arg("blocking_ms"),
           py::arg("heartbeat_ttl_ms"), py::arg("max_segments"), py::arg("slabs"),
           py::arg("partitions"), py::arg("blocks_per_slab"), py::arg("block_tokens") = 0,
           py::arg("max_request_tokens") = 0, py::arg("max_batch_tokens") = 0,
           py::arg("burst_requests") = 0, py::arg("revoke_ms") = 0.0, py::arg("slowdown") = 0.0,
           py::arg("without") = 0, py::arg("wait_budget_ms") = 1000.0,
           py::arg("park_wait_ms") = 1000.0, py::arg("clock") = py::none())
      .def("append_move", &CertificateLog::append_move, py::kw_only(), py::arg("from_partition"),
           py::arg("to_partition"), py::arg("slabs"), py::arg("lease_id"), py::arg("epoch"),
           py::arg("move_kind"))
      .def("append_revoke_begun", &append_revoke_begun, py::kw_only(), py::arg("deadline_ns"),
           py::arg("slabs"))
      .def("append_step", &append_step, py::arg("forecast"), py::kw_only(), py::arg("actual_ms"),
           py::arg("decode_sequences"), py::arg("context_tokens"), py::arg("prefill_tokens"),
           py::arg("blocked_ms") = 0.0, py::arg("lent_ms") = 0.0, py::arg("began_ns") = 0)
      .def("append_gave_back", &CertificateLog::append_gave_back, py::arg("reason"))
      .def("append_evicted", &CertificateLog::append_evicted, py::kw_only(), py::arg("borrower"),
           py::arg("pid"), py::arg("reason"))
      .def_property_readonly(
          "waited_ms",
          [](CertificateLog& log) { return static_cast<double>(log.wait_spent_ns()) / 1e6; })
      .def("flush", [](CertificateLog& log) { check_unlocked([&] { return log.flush(); }); })
      .def("close", [](CertificateLog& log) { check_unlocked([&] { return log.close(); }); })
      .def("count", &CertificateLog::count, py::arg("kind"))
      .def_property_readonly("records", &CertificateLog::records)
      .def_property_readonly("is_healthy", &CertificateLog::is_healthy);
}

}  // namespace

void bind_slo(py::module_& module) { bind_log(module); }

}  // namespace rose::bind
