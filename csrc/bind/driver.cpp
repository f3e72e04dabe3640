// The CUDA driver for Python: devices, streams, events and graphs.
//
// Nothing here calls Python. Any driver call may wait for a lock of the driver that another thread
// holds, so all calls run without the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bind/clock.h"
#include "bind/stream.h"
#include "bind/unlocked.h"
#include "driver/device.h"
#include "driver/graph.h"
#include "driver/kernel_library.h"
#include "driver/stream.h"

namespace rose::bind {

namespace py = pybind11;
using driver::Device;
using driver::DeviceFacts;
using driver::Driver;
using driver::Event;
using driver::Graph;
using driver::Stream;
using driver::StreamPriority;

namespace {

// Drivers and devices are immutable, but pybind11 holds no pointers to const.
std::shared_ptr<Driver> open_driver() {
  return std::const_pointer_cast<Driver>(take_unlocked([] { return Driver::open(); }));
}

std::shared_ptr<Device> open_device(int ordinal, std::shared_ptr<Driver> driver) {
  if (driver == nullptr) driver = open_driver();
  return std::const_pointer_cast<Device>(
      take_unlocked([&] { return Device::open(std::move(driver), ordinal); }));
}

StreamPriority priority_of(bool highest) {
  return highest ? StreamPriority::kHighest : StreamPriority::kLowest;
}

std::vector<std::string> embedded_kernels() {
  std::vector<std::string> names;
  for (const driver::Fatbin& one : driver::embedded_fatbins()) names.emplace_back(one.name);
  return names;
}

void bind_devices(py::module_& m) {
  py::class_<DeviceFacts>(m, "DeviceFacts")
      .def_readonly("ordinal", &DeviceFacts::ordinal)
      .def_readonly("name", &DeviceFacts::name)
      .def_readonly("uuid", &DeviceFacts::uuid)
      .def_readonly("compute_major", &DeviceFacts::compute_major)
      .def_readonly("compute_minor", &DeviceFacts::compute_minor)
      .def_readonly("multiprocessors", &DeviceFacts::multiprocessors)
      .def_readonly("uses_mps", &DeviceFacts::uses_mps)
      .def_readonly("has_virtual_memory", &DeviceFacts::has_virtual_memory)
      .def_readonly("has_posix_fd_handles", &DeviceFacts::has_posix_fd_handles)
      .def_readonly("has_stream_mem_ops_64", &DeviceFacts::has_stream_mem_ops_64)
      .def_readonly("has_wait_value_nor", &DeviceFacts::has_wait_value_nor);

  UnlockedClass<Driver, std::shared_ptr<Driver>>(m, "CudaDriver")
      .def_static("open", &open_driver)
      .def_property_readonly("version", &Driver::version)
      .def("device_count",
           [](const Driver& self) { return take_unlocked([&] { return self.device_count(); }); })
      .def("loads_lazily",
           [](const Driver& self) { return take_unlocked([&] { return self.loads_lazily(); }); })
      .def(
          "facts",
          [](const Driver& self, int ordinal) {
            return take_unlocked([&] { return driver::device_facts(self, ordinal); });
          },
          py::arg("ordinal"));

  UnlockedClass<Device, std::shared_ptr<Device>>(m, "CudaDevice")
      .def_static("open", &open_device, py::arg("ordinal"), py::kw_only(),
                  py::arg("driver") = py::none())
      .def_property_readonly("name", [](const Device& self) { return self.facts().name; })
      .def_property_readonly("ordinal", &Device::ordinal)
      .def_property_readonly(
          "driver",
          [](const Device& self) { return std::const_pointer_cast<Driver>(self.shared_driver()); })
      .def_property_readonly("facts", &Device::facts)
      .def_property_readonly("priority_range",
                             [](const Device& self) {
                               const auto range =
                                   take_unlocked([&] { return self.priority_range(); });
                               return std::pair{range.lowest, range.highest};
                             })
      .def("memory_info", [](const Device& self) {
        const auto info = take_unlocked([&] { return self.memory_info(); });
        return std::pair{info.free_bytes, info.total_bytes};
      });
}

void bind_streams(py::module_& m) {
  UnlockedClass<Stream>(m, "CudaStream")
      .def_static(
          "create",
          [](const std::shared_ptr<Device>& device, bool highest) {
            return take_unlocked([&] { return Stream::create(device, priority_of(highest)); });
          },
          py::arg("device").none(false), py::kw_only(), py::arg("highest"))
      .def_property_readonly(
          "handle", [](const Stream& self) { return std::bit_cast<std::uintptr_t>(self.get()); })
      .def_property_readonly(
          "priority",
          [](const Stream& self) { return take_unlocked([&] { return self.priority(); }); })
      .def("is_idle",
           [](const Stream& self) { return take_unlocked([&] { return self.is_idle(); }); })
      .def(
          "wait",
          [](const Stream& self, double timeout_ms) {
            const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
            check_unlocked([&] { return self.wait(timeout_ns); });
          },
          py::kw_only(), py::arg("timeout_ms"));

  UnlockedClass<Event>(m, "CudaEvent")
      .def_static(
          "create",
          [](const std::shared_ptr<Device>& device, bool has_timing) {
            return take_unlocked([&] { return Event::create(device, has_timing); });
          },
          py::arg("device").none(false), py::kw_only(), py::arg("has_timing"))
      .def(
          "record",
          [](Event& self, std::uintptr_t stream) {
            check_unlocked([&] { return self.record(stream_of(stream)); });
          },
          py::arg("stream"))
      .def("is_done",
           [](const Event& self) { return take_unlocked([&] { return self.is_done(); }); })
      .def(
          "since_ms",
          [](const Event& self, const Event& earlier) {
            return static_cast<double>(take_unlocked([&] { return self.since(earlier); })) / 1e6;
          },
          py::arg("earlier"));
}

void bind_graphs(py::module_& m) {
  UnlockedClass<Graph>(m, "CudaGraph")
      .def_static(
          "begin_capture",
          [](const std::shared_ptr<Device>& device, std::uintptr_t stream) {
            check_unlocked([&] { return Graph::begin_capture(*device, stream_of(stream)); });
          },
          py::arg("device").none(false), py::arg("stream"))
      .def_static(
          "end_capture",
          [](const std::shared_ptr<Device>& device, std::uintptr_t stream) {
            return take_unlocked([&] { return Graph::end_capture(device, stream_of(stream)); });
          },
          py::arg("device").none(false), py::arg("stream"))
      .def_static(
          "instantiate",
          [](const std::shared_ptr<Device>& device, std::uintptr_t captured) {
            return take_unlocked(
                [&] { return Graph::instantiate(device, std::bit_cast<CUgraph>(captured)); });
          },
          py::arg("device").none(false), py::arg("captured"))
      .def_property_readonly(
          "handle", [](const Graph& self) { return std::bit_cast<std::uintptr_t>(self.get()); })
      .def(
          "launch",
          [](Graph& self, std::uintptr_t stream) {
            check_unlocked([&] { return self.launch(stream_of(stream)); });
          },
          py::arg("stream"));
}

}  // namespace

void bind_driver(py::module_& module) {
  bind_devices(module);
  bind_streams(module);
  bind_graphs(module);
  module.def("embedded_kernels", &embedded_kernels);
}

}  // namespace rose::bind
