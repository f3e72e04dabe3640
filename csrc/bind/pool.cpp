// Pools of other processes for Python: exports, and the pools that attach to them.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind/pool.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "memory/cuda_vmm.h"
#include "memory/faulty.h"
#include "memory/host_memfd.h"
#include "memory/pool.h"

namespace rose::bind {

namespace py = pybind11;
using driver::Device;
using memory::Pool;
using memory::PoolExport;

Result<std::unique_ptr<memory::PageBackend>> create_backend(const std::shared_ptr<Device>& device,
                                                            std::int64_t fail_call) {
  std::unique_ptr<memory::PageBackend> backend = std::make_unique<memory::HostMemfd>();
  if (device != nullptr) {
    Result<std::unique_ptr<memory::CudaVmm>> made = memory::CudaVmm::create(device);
    if (!made.ok()) return made.status();
    backend = made.take();
  }
  if (fail_call > 0) {
    auto plan = std::make_shared<memory::FaultPlan>();
    plan->fail_call = fail_call;
    backend = std::make_unique<memory::FaultyBackend>(std::move(backend), std::move(plan));
  }
  return backend;
}

FileDescriptor copy_of(int fd) {
  FileDescriptor copy{::fcntl(fd, F_DUPFD_CLOEXEC, 0)};
  if (!copy.is_open()) raise(from_errno("fcntl(F_DUPFD_CLOEXEC)", errno));
  return copy;
}

int give_fd(const FileDescriptor& fd) {
  const int given = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0);
  if (given < 0) raise(from_errno("fcntl(F_DUPFD_CLOEXEC)", errno));
  return given;
}

namespace {

std::vector<int> fds_of(const PoolExport& from) {
  std::vector<int> fds;
  for (const FileDescriptor& object : from.objects) fds.push_back(object.get());
  return fds;
}

std::unique_ptr<PoolExport> make_export(const std::vector<int>& fds,
                                        const std::vector<std::size_t>& sizes,
                                        std::size_t slab_bytes, std::int32_t slab_count,
                                        std::int32_t header_slabs, bool is_on_host) {
  auto made = std::make_unique<PoolExport>();
  made->shape = {slab_bytes, slab_count, header_slabs};
  made->sizes = sizes;
  made->is_on_host = is_on_host;
  for (const int fd : fds) made->objects.push_back(copy_of(fd));
  return made;
}

std::unique_ptr<Pool> attach_pool(const PoolExport& from, const std::shared_ptr<Device>& device,
                                  std::int64_t fail_backend_call) {
  const memory::PoolShape& shape = from.shape;
  std::unique_ptr<PoolExport> copy =
      make_export(fds_of(from), from.sizes, shape.slab_bytes, shape.slab_count, shape.header_slabs,
                  from.is_on_host);
  // Mapping a device's memory may wait for the driver.
  return std::make_unique<Pool>(take_unlocked([&]() -> Result<Pool> {
    Result<std::unique_ptr<memory::PageBackend>> backend =
        create_backend(device, fail_backend_call);
    if (!backend.ok()) return backend.status();
    return Pool::attach(backend.take(), std::move(*copy));
  }));
}

}  // namespace

std::unique_ptr<PoolExport> share(const Pool& pool) {
  return std::make_unique<PoolExport>(take(pool.share()));
}

void bind_pool(py::module_& m) {
  py::class_<PoolExport>(m, "PoolExport")
      .def(py::init(&make_export), py::arg("fds"), py::kw_only(), py::arg("sizes"),
           py::arg("slab_bytes"), py::arg("slab_count"), py::arg("header_slabs"),
           py::arg("is_on_host"))
      .def_property_readonly("fds", &fds_of)
      .def_readonly("sizes", &PoolExport::sizes)
      .def_property_readonly("slab_bytes", [](const PoolExport& e) { return e.shape.slab_bytes; })
      .def_property_readonly("slab_count", [](const PoolExport& e) { return e.shape.slab_count; })
      .def_property_readonly("header_slabs",
                             [](const PoolExport& e) { return e.shape.header_slabs; })
      .def_readonly("is_on_host", &PoolExport::is_on_host);
  // Releasing a device's memory may wait for the driver.
  UnlockedClass<Pool> pool(m, "Pool");
  pool.def_static("attach", &attach_pool, py::arg("source"), py::kw_only(),
                  py::arg("device") = py::none(), py::arg("fail_backend_call") = 0)
      .def("share", &share);
  bind_bytes_of<Pool>(pool);
}

}  // namespace rose::bind
