// Tensors in slabs: heaps for Python, and the two functions that torch calls for memory.
#include "memory/slab_heap.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <sys/types.h>

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bind/status.h"
#include "memory/arbiter.h"

namespace rose::bind {

namespace py = pybind11;
using memory::Arbiter;
using memory::SlabHeap;
using memory::SlabId;

namespace {

// A heap, and the pool its addresses are of: torch may hold both when Python holds neither.
struct Heap {
  std::shared_ptr<Arbiter> arbiter;
  std::unique_ptr<SlabHeap> slabs;
};

std::shared_ptr<Heap> create_heap(std::shared_ptr<Arbiter> arbiter,
                                  const std::vector<SlabId>& slabs) {
  std::unique_ptr<SlabHeap> heap = take(SlabHeap::create(arbiter->pool(), slabs));
  return std::make_shared<Heap>(Heap{std::move(arbiter), std::move(heap)});
}

// What torch calls has no argument of ours, so the heap of a device has to be found by the number
// of the device. This is the only state that rose keeps for the process.
class Offers {
 public:
  static constexpr int kDevicesMax = 64;

  Status offer(int device, std::shared_ptr<Heap> heap) noexcept {
    ROSE_TRY(check_device(device));
    const std::lock_guard lock{mutex_};
    std::shared_ptr<Heap>& place = heaps_[static_cast<std::size_t>(device)];
    if (place != nullptr) {
      return Status::invalid_argument("torch has a heap for device " + std::to_string(device) +
                                      " already: withdraw it first");
    }
    place = std::move(heap);
    return {};
  }

  Status withdraw(int device) noexcept {
    ROSE_TRY(check_device(device));
    std::shared_ptr<Heap> gone;  // ends after the lock: it may be the last owner of a pool
    const std::lock_guard lock{mutex_};
    std::shared_ptr<Heap>& place = heaps_[static_cast<std::size_t>(device)];
    if (place == nullptr) {
      return Status::invalid_argument("torch has no heap for device " + std::to_string(device));
    }
    if (const std::size_t used = place->slabs->used_bytes(); used > 0) {
      return Status::unavailable("torch still holds " + std::to_string(used) +
                                 " bytes of the heap: drop the tensors and the MemPool first");
    }
    gone = std::move(place);
    return {};
  }

  std::shared_ptr<Heap> find(int device) noexcept {
    if (device < 0 || device >= kDevicesMax) return nullptr;
    const std::lock_guard lock{mutex_};
    return heaps_[static_cast<std::size_t>(device)];
  }

 private:
  static Status check_device(int device) noexcept {
    if (device >= 0 && device < kDevicesMax) return {};
    return Status::invalid_argument("no device " + std::to_string(device));
  }

  std::mutex mutex_;  // guards the heaps
  std::array<std::shared_ptr<Heap>, kDevicesMax> heaps_;
};

Offers& offers() noexcept {
  static Offers all;
  return all;
}

}  // namespace

void bind_slab_heap(py::module_& m) {
  py::class_<Heap, std::shared_ptr<Heap>>(m, "SlabHeap", py::release_gil_before_calling_cpp_dtor())
      .def_static("create", &create_heap, py::arg("arbiter").none(false), py::kw_only(),
                  py::arg("slabs"))
      .def(
          "alloc",
          [](Heap& self, std::size_t size_bytes) {
            return std::bit_cast<std::uintptr_t>(self.slabs->alloc(size_bytes));
          },
          py::arg("size_bytes"))
      .def(
          "free",
          [](Heap& self, std::uintptr_t address) {
            check(self.slabs->free(std::bit_cast<std::byte*>(address)));
          },
          py::arg("address"))
      .def_property_readonly("used_bytes", [](const Heap& h) { return h.slabs->used_bytes(); })
      .def_property_readonly("size_bytes", [](const Heap& h) { return h.slabs->size_bytes(); })
      .def_property_readonly("largest_free_bytes",
                             [](const Heap& h) { return h.slabs->largest_free_bytes(); });
  m.def(
      "offer_heap",
      [](int device, std::shared_ptr<Heap> heap) { check(offers().offer(device, heap)); },
      py::arg("device"), py::arg("heap").none(false));
  m.def("withdraw_heap", [](int device) { check(offers().withdraw(device)); }, py::arg("device"));
}

}  // namespace rose::bind

// The signatures are torch's (torch.cuda.CUDAPluggableAllocator). They take no GIL and never throw;
// null is torch's word for "out of memory".
extern "C" {

__attribute__((visibility("default"))) void* rose_alloc(ssize_t size_bytes, int device,
                                                        void* /*stream*/) noexcept {
  const auto heap = rose::bind::offers().find(device);
  if (heap == nullptr || size_bytes <= 0) return nullptr;
  return heap->slabs->alloc(static_cast<std::size_t>(size_bytes));
}

// Torch has waited for the streams that used the memory before it calls this.
__attribute__((visibility("default"))) void rose_free(void* at, ssize_t /*size_bytes*/, int device,
                                                      void* /*stream*/) noexcept {
  const auto heap = rose::bind::offers().find(device);
  // Nobody could be told of an address that is not ours.
  if (heap != nullptr) static_cast<void>(heap->slabs->free(static_cast<std::byte*>(at)));
}

}  // extern "C"
