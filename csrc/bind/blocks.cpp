// The block allocators for Python.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
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
using memory::BlockKey;
using memory::Evacuation;
using memory::SlabId;

namespace {

using IdArray = py::array_t<BlockId, py::array::c_style>;

// Block ids from Python. The short lists of a decode step need no heap allocation.
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
  // An id that does not fit 32 bits becomes -1, which is out of range for every allocator.
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

// Calls `fill` with room for n ids. Returns the list of these ids, or None if `fill` returns false.
template <typename Fill>
py::object fill_list(const BlockAllocator& allocator, std::int64_t n, Fill fill) {
  if (n < 0)
    raise(Status::invalid_argument("the number of blocks must be at least 0, got " +
                                   std::to_string(n)));
  std::array<BlockId, 64> small;
  std::vector<BlockId> large;
  std::span<BlockId> out{small.data(), std::min(static_cast<std::size_t>(n), small.size())};
  if (static_cast<std::size_t>(n) > small.size()) {
    if (n > allocator.capacity_blocks()) return py::none();  // checked before the room is allocated
    large.resize(static_cast<std::size_t>(n));
    out = large;
  }
  return fill(out) ? py::object{to_list(out)} : py::object{py::none()};
}

// Keys from Python, 16 bytes each: a list of bytes objects, or one buffer with all keys.
class Keys {
 public:
  explicit Keys(const py::handle& source) {
    if (PyList_CheckExact(source.ptr()) != 0) {
      const auto count = static_cast<std::size_t>(PyList_GET_SIZE(source.ptr()));
      BlockKey* out = resize(count);
      for (std::size_t i = 0; i < count; ++i) {
        copy(PyList_GET_ITEM(source.ptr(), static_cast<py::ssize_t>(i)), out + i);
      }
      return;
    }
    if (PyObject_CheckBuffer(source.ptr()) == 0) refuse();
    const py::buffer_info all = py::reinterpret_borrow<py::buffer>(source).request();
    const auto bytes = static_cast<std::size_t>(all.size * all.itemsize);
    if (bytes % sizeof(BlockKey) != 0 || PyBuffer_IsContiguous(all.view(), 'C') == 0) refuse();
    BlockKey* out = resize(bytes / sizeof(BlockKey));
    if (bytes > 0) std::memcpy(out, all.ptr, bytes);
  }
  std::span<const BlockKey> span() const {
    return {large_.empty() ? small_.data() : large_.data(), count_};
  }

 private:
  static void copy(PyObject* source, BlockKey* out) {
    if (PyBytes_CheckExact(source) == 0 || PyBytes_GET_SIZE(source) != sizeof(BlockKey)) refuse();
    std::memcpy(out, PyBytes_AS_STRING(source), sizeof(BlockKey));
  }
  [[noreturn]] static void refuse() {
    raise(Status::invalid_argument(
        "each key must have 16 bytes: pass a list of bytes, or one contiguous buffer"));
  }
  BlockKey* resize(std::size_t count) {
    count_ = count;
    if (count <= small_.size()) return small_.data();
    large_.resize(count);
    return large_.data();
  }

  std::array<BlockKey, 64> small_;
  std::vector<BlockKey> large_;
  std::size_t count_{0};
};

// Calls `find` with the keys and with room for as many ids. Returns the list of the found ids.
template <typename Find>
py::list find_list(const py::object& keys, Find find) {
  const Keys wanted{keys};
  std::array<BlockId, 64> small;
  std::vector<BlockId> large;
  std::span<BlockId> out{small.data(), std::min(wanted.span().size(), small.size())};
  if (wanted.span().size() > small.size()) {
    large.resize(wanted.span().size());
    out = large;
  }
  return to_list(out.first(find(wanted.span(), out)));
}

// Returns the name of a namespace for the allocator. Python names it by 16 bytes, or by a model and
// the version of its weights; the first letter of the result distinguishes the two kinds.
std::string namespace_name(const py::object& key) {
  if (py::isinstance<py::bytes>(key)) {
    const auto name = key.cast<std::string>();
    if (name.size() == sizeof(BlockKey)) return "k" + name;
  } else if (py::isinstance<py::tuple>(key) && py::len(key) == 2) {
    const auto pair = py::reinterpret_borrow<py::tuple>(key);
    if (py::isinstance<py::str>(pair[0]) && py::isinstance<py::int_>(pair[1])) {
      return "v" + py::str(pair[1]).cast<std::string>() + " " + pair[0].cast<std::string>();
    }
  }
  raise(Status::invalid_argument(
      "a cache namespace must be 16 bytes, or (model, version) with a string and an integer"));
}

py::tuple plan_evacuation(BlockAllocator& self, const py::object& slabs,
                          std::optional<std::int64_t> limit) {
  if (limit.has_value() && *limit < 0) {
    raise(Status::invalid_argument("the number of blocks to move must be at least 0, got " +
                                   std::to_string(*limit)));
  }
  const std::int64_t most = limit.value_or(std::numeric_limits<std::int64_t>::max());
  const Evacuation plan =
      slabs.is_none() ? self.plan_evacuation(most) : self.plan_evacuation(Ids{slabs}.span(), most);
  return py::make_tuple(to_list(plan.from), to_list(plan.to));
}

py::list finish_evacuation(BlockAllocator& self, const py::object& from, const py::object& to) {
  const Ids sources{from};
  const Ids targets{to};
  std::vector<BlockId> now_at(targets.span().size());
  check(self.finish_evacuation(sources.span(), targets.span(), now_at));
  return to_list(now_at);
}

// Returns the slab of each block, -1 for an id that lies in no slab.
std::vector<SlabId> slabs_of(const BlockAllocator& self, const py::object& ids) {
  const Ids blocks{ids};
  std::vector<SlabId> slabs;
  for (const BlockId block : blocks.span()) slabs.push_back(self.grid().slab_at(block));
  return slabs;
}

void check_slab(const BlockAllocator& allocator, SlabId slab) {
  if (slab >= 0 && slab < allocator.grid().shape().slab_count) return;
  raise(Status::invalid_argument("slab " + std::to_string(slab) + " does not exist"));
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
          "share", [](Self& self, const py::object& ids) { check(self.share(Ids{ids}.span())); },
          py::arg("ids"))
      .def(
          "references",
          [](const Self& self, BlockId block) { return take(self.references(block)); },
          py::arg("block"))
      .def(
          "set_cache_namespace",
          [](Self& self, const py::object& key) { self.set_cache_namespace(namespace_name(key)); },
          py::arg("key"))
      .def(
          "publish",
          [](Self& self, const py::object& ids, const py::object& keys) {
            check(self.publish(Ids{ids}.span(), Keys{keys}.span()));
          },
          py::arg("ids"), py::arg("keys"))
      .def(
          "lookup",
          [](const Self& self, const py::object& keys) {
            return find_list(keys, [&](auto wanted, auto out) { return self.lookup(wanted, out); });
          },
          py::arg("keys"))
      .def(
          "acquire",
          [](Self& self, const py::object& keys) {
            return find_list(keys,
                             [&](auto wanted, auto out) { return self.acquire(wanted, out); });
          },
          py::arg("keys"))
      .def(
          "forget", [](Self& self, const py::object& ids) { check(self.forget(Ids{ids}.span())); },
          py::arg("ids"))
      .def("forget_all", &Self::forget_all)
      .def("plan_evacuation", &plan_evacuation, py::arg("slabs") = py::none(),
           py::arg("limit") = py::none())
      .def("finish_evacuation", &finish_evacuation, py::arg("from_ids"), py::arg("to_ids"))
      .def(
          "cancel_evacuation",
          [](Self& self, const py::object& from, const py::object& to) {
            check(self.cancel_evacuation(Ids{from}.span(), Ids{to}.span()));
          },
          py::arg("from_ids"), py::arg("to_ids"))
      .def(
          "free", [](Self& self, const py::object& ids) { check(self.free(Ids{ids}.span())); },
          py::arg("ids"))
      .def(
          "reserve",
          [](Self& self, std::int64_t n) {
            if (n < 0)
              raise(
                  Status::invalid_argument("the number of blocks to reserve must be at least 0, "
                                           "got " +
                                           std::to_string(n)));
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
      .def_property_readonly("slabs_in_use", &Self::slabs_in_use)
      .def_property_readonly("cached_blocks", &Self::cached_blocks)
      .def_property_readonly("used_blocks", &Self::used_blocks)
      .def_property_readonly("capacity_blocks", &Self::capacity_blocks)
      .def("used", &Self::used, py::arg("slab"))
      .def(
          "generation", [](const Self& self, SlabId slab) { return take(self.generation(slab)); },
          py::arg("slab"))
      .def("slabs_of", &slabs_of, py::arg("ids"))
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
              raise(Status::invalid_argument("the block must be at least 0, got " +
                                             std::to_string(block)));
            }
            return self.grid().offset_of(block);
          },
          py::arg("block"));
}

}  // namespace rose::bind
