// What pools and arbiters have in common for Python: their back end and their bytes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <bit>
#include <cstdint>
#include <memory>

#include "bind/status.h"
#include "driver/device.h"
#include "memory/page_backend.h"
#include "memory/pool.h"

namespace rose::bind {

// Device memory of `device`, or memory of the host when it is null. The call `fail_call` (from 1)
// of those that can fail does so on purpose; 0 fails none.
Result<std::unique_ptr<memory::PageBackend>> create_backend(
    const std::shared_ptr<driver::Device>& device, std::int64_t fail_call);

// A copy of a descriptor of Python's, which stays Python's to close.
FileDescriptor copy_of(int fd);
// The number of a new descriptor for Python, which Python must close.
int give_fd(const FileDescriptor& fd);

// On the heap, because descriptors cannot be copied.
std::unique_ptr<memory::PoolExport> share(const memory::Pool& pool);

// All bytes of a pool on the host. `owner` keeps the mapping, and the view keeps `owner`.
template <typename Mapping>
pybind11::array_t<std::uint8_t> view_of(const Mapping& pool, const pybind11::object& owner) {
  if (!pool.is_on_host()) {
    raise(Status::invalid_argument(
        "the pool is in device memory, which the host cannot view: use pool_address"));
  }
  return pybind11::array_t<std::uint8_t>{static_cast<pybind11::ssize_t>(pool.size_bytes()),
                                         reinterpret_cast<const std::uint8_t*>(pool.data()), owner};
}

// What every mapping of a pool says of itself: Pool, MappedWindow.
template <typename Mapping, typename Class>
void bind_bytes_of(Class& bound) {
  bound.def_property_readonly("slab_bytes", [](const Mapping& m) { return m.shape().slab_bytes; })
      .def_property_readonly("slab_count", [](const Mapping& m) { return m.shape().slab_count; })
      .def_property_readonly("header_slabs",
                             [](const Mapping& m) { return m.shape().header_slabs; })
      .def_property_readonly("is_on_host", &Mapping::is_on_host)
      .def_property_readonly(
          "pool_address", [](const Mapping& m) { return std::bit_cast<std::uintptr_t>(m.data()); })
      .def_property_readonly("pool_bytes", &Mapping::size_bytes)
      .def("pool_view",
           [](const pybind11::object& self) { return view_of(self.cast<const Mapping&>(), self); });
}

}  // namespace rose::bind
