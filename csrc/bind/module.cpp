// The extension module. Each bind function is called after those that bind the classes it uses.
#include <pybind11/pybind11.h>

namespace rose::bind {

void bind_driver(pybind11::module_& module);
void bind_blocks(pybind11::module_& module);
void bind_pool(pybind11::module_& module);
void bind_mapped_window(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
void bind_ledger(pybind11::module_& module);
void bind_tenants(pybind11::module_& module);
void bind_compute(pybind11::module_& module);
void bind_stream_gate(pybind11::module_& module);
void bind_latency(pybind11::module_& module);
void bind_slo(pybind11::module_& module);
void bind_serving_state(pybind11::module_& module);
void bind_watchdog(pybind11::module_& module);
void bind_creditor(pybind11::module_& module);
void bind_admission(pybind11::module_& module);
void bind_coserving(pybind11::module_& module);
void bind_transfer(pybind11::module_& module);
void bind_chunks(pybind11::module_& module);
void bind_strat(pybind11::module_& module);
void bind_tiles(pybind11::module_& module);
void bind_device_codec(pybind11::module_& module);
void bind_scheduler(pybind11::module_& module);

}  // namespace rose::bind

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core of rose.";
  module.attr("__compiler__") = __VERSION__;
  rose::bind::bind_driver(module);
  rose::bind::bind_blocks(module);
  rose::bind::bind_pool(module);
  rose::bind::bind_mapped_window(module);
  rose::bind::bind_memory(module);
  rose::bind::bind_ledger(module);
  rose::bind::bind_tenants(module);
  rose::bind::bind_latency(module);
  rose::bind::bind_slo(module);
  rose::bind::bind_compute(module);
  rose::bind::bind_stream_gate(module);
  rose::bind::bind_serving_state(module);
  rose::bind::bind_watchdog(module);
  rose::bind::bind_creditor(module);
  rose::bind::bind_admission(module);
  rose::bind::bind_coserving(module);
  rose::bind::bind_transfer(module);
  rose::bind::bind_chunks(module);
  rose::bind::bind_strat(module);
  rose::bind::bind_tiles(module);
  rose::bind::bind_device_codec(module);
  rose::bind::bind_scheduler(module);
}
