// A borrower's own mapping of its lent slabs, for Python.
#include "memory/mapped_window.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "bind/pool.h"
#include "bind/status.h"
#include "bind/unlocked.h"

namespace rose::bind {

namespace py = pybind11;
using memory::MappedWindow;
using memory::PoolShape;
using memory::SlabId;

namespace {

Result<MappedWindow> make(PoolShape shape, const std::shared_ptr<driver::Device>& device,
                          std::int64_t fail_backend_call) {
  Result<std::unique_ptr<memory::PageBackend>> backend = create_backend(device, fail_backend_call);
  if (!backend.ok()) return backend.status();
  return MappedWindow::create(backend.take(), shape);
}

}  // namespace

void bind_mapped_window(py::module_& m) {
  using Self = MappedWindow;
  UnlockedClass<Self> window(m, "MappedWindow");
  window
      .def_static(
          "create",
          [](std::size_t slab_bytes, std::int32_t slab_count, std::int32_t header_slabs,
             const std::shared_ptr<driver::Device>& device, std::int64_t fail_backend_call) {
            return std::make_unique<Self>(
                take(make({slab_bytes, slab_count, header_slabs}, device, fail_backend_call)));
          },
          py::kw_only(), py::arg("slab_bytes"), py::arg("slab_count"), py::arg("header_slabs"),
          py::arg("device") = py::none(), py::arg("fail_backend_call") = 0)
      .def(
          "open_header",
          [](Self& self, std::int32_t index, int fd) {
            FileDescriptor copy = copy_of(fd);
            check_unlocked([&] { return self.open_header(index, std::move(copy)); });
          },
          py::arg("index"), py::kw_only(), py::arg("fd"))
      .def(
          "take",
          [](Self& self, SlabId slab, int fd) {
            FileDescriptor copy = copy_of(fd);
            check_unlocked([&] { return self.take(slab, std::move(copy)); });
          },
          py::arg("slab"), py::kw_only(), py::arg("fd"))
      .def(
          "give", [](Self& self, SlabId slab) { check(self.give(slab)); }, py::arg("slab"))
      .def("sweep", &Self::sweep, py::arg("at_most"), gil_released());
  window.def_property_readonly("held", &Self::held)
      .def_property_readonly("leaving", &Self::leaving);
  bind_bytes_of<Self>(window);
}

}  // namespace rose::bind
