// What pools and arbiters have in common for Python: their back end and their bytes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

#include "driver/device.h"
#include "memory/page_backend.h"
#include "memory/pool.h"

namespace rose::bind {

// Device memory of `device`, or memory of the host when it is null. The call `fail_call` (from 1)
// of those that can fail does so on purpose; 0 fails none.
Result<std::unique_ptr<memory::PageBackend>> create_backend(
    const std::shared_ptr<driver::Device>& device, std::int64_t fail_call);

// On the heap, because descriptors cannot be copied.
std::unique_ptr<memory::PoolExport> share(const memory::Pool& pool);

// All bytes of a pool on the host. `owner` keeps the mapping, and the view keeps `owner`.
pybind11::array_t<std::uint8_t> view_of(const memory::Pool& pool, const pybind11::object& owner);

}  // namespace rose::bind
