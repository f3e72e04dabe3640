// Bindings that pools and arbiters share: back ends, descriptors and views of memory.
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

// Creates a back end for the memory of `device`, or for host memory if `device` is null.
// `fail_call` injects a fault: n > 0 makes the n-th call that can fail return an error; 0 injects
// none.
Result<std::unique_ptr<memory::PageBackend>> create_backend(
    const std::shared_ptr<driver::Device>& device, std::int64_t fail_call);

// Duplicates a descriptor; Python still closes the original.
FileDescriptor copy_of(int fd);
// Returns a new descriptor, which Python must close.
int give_fd(const FileDescriptor& fd);

// Exports a pool. The result is on the heap, because a PoolExport cannot be copied.
std::unique_ptr<memory::PoolExport> share(const memory::Pool& pool);

// Returns a view of a host pool's bytes. The view keeps `owner` alive, and `owner` keeps the
// mapping alive.
template <typename Mapping>
pybind11::array_t<std::uint8_t> view_of(const Mapping& pool, const pybind11::object& owner) {
  if (!pool.is_on_host()) {
    raise(Status::invalid_argument(
        "the pool is in device memory, which the host cannot view: use pool_address"));
  }
  return pybind11::array_t<std::uint8_t>{static_cast<pybind11::ssize_t>(pool.size_bytes()),
                                         reinterpret_cast<const std::uint8_t*>(pool.data()), owner};
}

// Adds the properties of pool mappings (Pool, MappedWindow).
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
