// Certificates of loans for Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "bind/clock.h"
#include "bind/status.h"
#include "slo/admission.h"
#include "slo/demand.h"

namespace rose::bind {

namespace py = pybind11;
using slo::AdmissionBalance;
using slo::AdmissionTerms;
using slo::CertificateLog;
using slo::Demand;

namespace {

AdmissionTerms create_terms(std::uint64_t epoch, std::uint32_t to_partition, std::uint32_t slabs,
                            std::uint32_t blocks_per_slab, std::uint32_t block_tokens,
                            std::uint32_t free_serving_blocks, std::uint32_t unowned_slabs,
                            std::uint32_t revocable_blocks, double horizon_ms,
                            std::uint32_t running_requests, double decode_tokens_per_s,
                            double prefill_tokens_per_s, std::uint32_t max_request_tokens,
                            std::uint32_t max_batch_tokens, std::uint32_t burst_requests,
                            std::uint32_t burst_request_tokens) {
  const AdmissionTerms terms{.epoch = epoch,
                             .to_partition = to_partition,
                             .slabs = slabs,
                             .blocks_per_slab = blocks_per_slab,
                             .block_tokens = block_tokens,
                             .free_serving_blocks = free_serving_blocks,
                             .unowned_slabs = unowned_slabs,
                             .revocable_blocks = revocable_blocks,
                             .horizon_ms = horizon_ms,
                             .running_requests = running_requests,
                             .decode_tokens_per_s = decode_tokens_per_s,
                             .prefill_tokens_per_s = prefill_tokens_per_s,
                             .max_request_tokens = max_request_tokens,
                             .max_batch_tokens = max_batch_tokens,
                             .burst_requests = burst_requests,
                             .burst_request_tokens = burst_request_tokens};
  check(slo::check(terms));
  return terms;
}

std::shared_ptr<Demand> create_demand(std::shared_ptr<slo::LatencyModel> model,
                                      std::uint32_t blocks_per_slab, std::uint32_t block_tokens,
                                      std::uint32_t step_tokens, std::uint32_t request_tokens,
                                      std::uint32_t burst_requests, double horizon_ms,
                                      double memory_ms, double epsilon, std::uint32_t window,
                                      std::shared_ptr<Clock> clock) {
  return take(Demand::create({.blocks_per_slab = blocks_per_slab,
                              .block_tokens = block_tokens,
                              .step_tokens = step_tokens,
                              .request_tokens = request_tokens,
                              .burst_requests = burst_requests,
                              .horizon_ms = horizon_ms,
                              .memory_ms = memory_ms,
                              .epsilon = epsilon,
                              .window = window},
                             std::move(model), clock_or_boot(std::move(clock))));
}

void bind_demand(py::module_& module) {
  py::class_<Demand, std::shared_ptr<Demand>>(module, "Demand")
      .def(py::init(&create_demand), py::arg("model").none(false), py::kw_only(),
           py::arg("blocks_per_slab"), py::arg("block_tokens"), py::arg("step_tokens"),
           py::arg("request_tokens"), py::arg("burst_requests"), py::arg("horizon_ms"),
           py::arg("memory_ms"), py::arg("epsilon"), py::arg("window"),
           py::arg("clock") = py::none())
      .def_property_readonly("blocks_per_slab",
                             [](const Demand& demand) { return demand.config().blocks_per_slab; })
      .def("arrived", &Demand::arrived, py::kw_only(), py::arg("prompt_tokens"))
      .def("step_ended", &Demand::step_ended, py::kw_only(), py::arg("predicted_ms"),
           py::arg("actual_ms"), py::arg("decode_sequences"), py::arg("prefill_tokens"))
      .def(
          "terms",
          [](Demand& demand, std::uint32_t running) { return take(demand.terms(running)); },
          py::kw_only(), py::arg("running"))
      .def(
          "blocks",
          [](Demand& demand, std::uint32_t running) { return take(demand.blocks(running)); },
          py::kw_only(), py::arg("running"));
}

}  // namespace

// Called after bind_creditor(), which binds ServingState.
void bind_admission(py::module_& module) {
  py::class_<AdmissionTerms>(module, "AdmissionTerms")
      .def(py::init(&create_terms), py::kw_only(), py::arg("epoch"), py::arg("to_partition"),
           py::arg("slabs"), py::arg("blocks_per_slab"), py::arg("block_tokens"),
           py::arg("free_serving_blocks"), py::arg("unowned_slabs"), py::arg("revocable_blocks"),
           py::arg("horizon_ms"), py::arg("running_requests"), py::arg("decode_tokens_per_s"),
           py::arg("prefill_tokens_per_s"), py::arg("max_request_tokens"),
           py::arg("max_batch_tokens"), py::arg("burst_requests"), py::arg("burst_request_tokens"))
      .def_readwrite("slabs", &AdmissionTerms::slabs)
      .def_readonly("epoch", &AdmissionTerms::epoch)
      .def_readonly("unowned_slabs", &AdmissionTerms::unowned_slabs)
      .def_readonly("decode_tokens_per_s", &AdmissionTerms::decode_tokens_per_s)
      .def_readonly("prefill_tokens_per_s", &AdmissionTerms::prefill_tokens_per_s)
      .def_readonly("burst_requests", &AdmissionTerms::burst_requests)
      .def_readonly("burst_request_tokens", &AdmissionTerms::burst_request_tokens);

  py::class_<AdmissionBalance>(module, "AdmissionBalance")
      .def_readonly("growth_blocks", &AdmissionBalance::growth_blocks)
      .def_readonly("request_blocks", &AdmissionBalance::request_blocks)
      .def_readonly("burst_blocks", &AdmissionBalance::burst_blocks)
      .def_readonly("demand_blocks", &AdmissionBalance::demand_blocks)
      .def_readonly("slack_blocks", &AdmissionBalance::slack_blocks);

  module.def("admission_balance", &slo::balance, py::arg("terms"));
  module.def("largest_grant", &slo::largest_grant, py::arg("terms"));
  module.def(
      "admission_certificate",
      [](AdmissionTerms& terms, CertificateLog* log, const slo::ServingState* serving) {
        return take(slo::admission_certificate(terms, log, serving));
      },
      py::arg("terms"), py::kw_only(), py::arg("log"), py::arg("serving") = py::none());
  bind_demand(module);
  // Does nothing. Its cost is the least that any call of this module can cost.
  module.def("empty_call", [] {});
}

}  // namespace rose::bind
