// The block allocators for Python.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind/status.h"
#include "memory/block_allocator.h"

namespace rose::bind {

namespace py = pybind11;
using memory::BlockAllocator;
using memory::BlockId;
using memory::SlabId;

namespace {

using IdArray = py::array_t<BlockId, py::array::c_style>;

// Block ids that came from Python, without a heap allocation for the short lists of a decode step.
class Ids {
 public:
  explicit Ids(const py::handle& source) {
    if (PyList_CheckExact(source.ptr()) != 0) {
      BlockId* out = resize(static_cast<std::size_t>(PyList_GET_SIZE(source.ptr())));
      for (std::size_t i = 0; i < count_; ++i) {
        out[i] = to_id(PyList_GET_ITEM(source.ptr(), static_cast<py::ssize_t>(i)));
      }
    } else if (py::isinstance<IdArray>(source)) {
      const auto array = py::reinterpret_borrow<IdArray>(source);
      BlockId* out = resize(static_cast<std::size_t>(array.size()));
      std::copy_n(array.data(), count_, out);
    } else {
      const auto sequence = py::list(py::reinterpret_borrow<py::object>(source));
      BlockId* out = resize(sequence.size());
      for (std::size_t i = 0; i < count_; ++i) out[i] = to_id(sequence[i].ptr());
    }
  }
  std::span<const BlockId> span() const {
    return {large_.empty() ? small_.data() : large_.data(), count_};
  }

 private:
  // An id that does not fit is out of range for every allocator, and -1 is too.
  static BlockId to_id(PyObject* value) {
    int overflow = 0;
    const long id = PyLong_AsLongAndOverflow(value, &overflow);
    if (id == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    const bool fits = overflow == 0 && id == static_cast<BlockId>(id);
    return fits ? static_cast<BlockId>(id) : BlockId{-1};
  }
  BlockId* resize(std::size_t count) {
    count_ = count;
    if (count <= small_.size()) return small_.data();
    large_.resize(count);
    return large_.data();
  }

  std::array<BlockId, 64> small_;
  std::vector<BlockId> large_;
  std::size_t count_{0};
};

py::list to_list(std::span<const BlockId> ids) {
  py::list list{ids.size()};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    PyList_SET_ITEM(list.ptr(), static_cast<py::ssize_t>(i), PyLong_FromLong(ids[i]));
  }
  return list;
}

// Calls `fill` on room for n ids; the list of them, or None when it says false.
template <typename Fill>
py::object fill_list(const BlockAllocator& allocator, std::int64_t n, Fill fill) {
  if (n < 0) raise(Status::invalid_argument("cannot take " + std::to_string(n) + " blocks"));
  std::array<BlockId, 64> small;
  std::vector<BlockId> large;
  std::span<BlockId> out{small.data(), std::min(static_cast<std::size_t>(n), small.size())};
  if (static_cast<std::size_t>(n) > small.size()) {
    if (n > allocator.capacity_blocks()) return py::none();  // before room for it is made
    large.resize(static_cast<std::size_t>(n));
    out = large;
  }
  return fill(out) ? py::object{to_list(out)} : py::object{py::none()};
}

void check_slab(const BlockAllocator& allocator, SlabId slab) {
  if (slab >= 0 && slab < allocator.grid().shape().slab_count) return;
  raise(Status::invalid_argument("no slab " + std::to_string(slab)));
}

}  // namespace

void bind_blocks(py::module_& m) {
  using Self = BlockAllocator;
  py::class_<Self, std::unique_ptr<Self, py::nodelete>>(m, "BlockAllocator")
      .def(
          "alloc",
          [](Self& self, std::int64_t n) {
            return fill_list(self, n, [&](std::span<BlockId> out) { return self.alloc(out); });
          },
          py::arg("n"))
      .def(
          "alloc_into",
          [](Self& self, IdArray out) {
            return self.alloc({out.mutable_data(), static_cast<std::size_t>(out.size())});
          },
          py::arg("out").noconvert())
      .def(
          "free", [](Self& self, const py::object& ids) { check(self.free(Ids{ids}.span())); },
          py::arg("ids"))
      .def(
          "free_checked",
          [](Self& self, BlockId block, std::uint32_t generation) {
            check(self.free_checked(block, generation));
          },
          py::arg("block"), py::kw_only(), py::arg("generation"))
      .def(
          "reserve",
          [](Self& self, std::int64_t n) {
            if (n < 0) raise(Status::invalid_argument("cannot reserve less than no block"));
            return self.reserve(n);
          },
          py::arg("n"))
      .def(
          "commit",
          [](Self& self, memory::TicketId ticket, std::int64_t n) {
            return fill_list(
                self, n, [&](std::span<BlockId> out) { return take(self.commit(ticket, out)); });
          },
          py::arg("ticket"), py::arg("n"))
      .def(
          "cancel", [](Self& self, memory::TicketId ticket) { check(self.cancel(ticket)); },
          py::arg("ticket"))
      .def(
          "pin",
          [](Self& self, const py::object& ids) { return take(self.pin_blocks(Ids{ids}.span())); },
          py::arg("ids"))
      .def(
          "pin_slabs",
          [](Self& self, const py::object& slabs) {
            return take(self.pin_slabs(Ids{slabs}.span()));
          },
          py::arg("slabs"))
      .def(
          "unpin", [](Self& self, memory::PinId pin) { check(self.unpin(pin)); }, py::arg("pin"))
      .def_property_readonly("free_blocks", &Self::free_blocks)
      .def_property_readonly("used_blocks", &Self::used_blocks)
      .def_property_readonly("capacity_blocks", &Self::capacity_blocks)
      .def("used", &Self::used, py::arg("slab"))
      .def(
          "generation", [](const Self& self, SlabId slab) { return take(self.generation(slab)); },
          py::arg("slab"))
      .def(
          "slab_of", [](const Self& self, BlockId block) { return self.grid().slab_at(block); },
          py::arg("block"))
      .def(
          "slab_blocks",
          [](const Self& self, SlabId slab) {
            check_slab(self, slab);
            const memory::BlockRun run = self.grid().blocks_of(slab);
            return std::pair{run.first, run.count};
          },
          py::arg("slab"))
      .def(
          "block_offset",
          [](const Self& self, BlockId block) {
            if (block < 0) {
              raise(
                  Status::invalid_argument("block " + std::to_string(block) + " is out of range"));
            }
            return self.grid().offset_of(block);
          },
          py::arg("block"));
}

}  // namespace rose::bind
