// The pool, its arbiter and the block allocators for Python.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bind/clock.h"
#include "bind/pool.h"
#include "bind/status.h"
#include "memory/arbiter.h"
#include "memory/ledger.h"

namespace rose::bind {

namespace py = pybind11;
using driver::Device;
using memory::Arbiter;
using memory::BlockAllocator;
using memory::BlockId;
using memory::Candidate;
using memory::Grant;
using memory::GrantRefusal;
using memory::LedgerView;
using memory::MoveObserver;
using memory::PartitionId;
using memory::PartitionSnapshot;
using memory::Pool;
using memory::RenewAnswer;
using memory::RevocationProgress;
using memory::SlabId;
using memory::SlabRecord;
using memory::SlabState;
using memory::Snapshot;

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

// ---- making an arbiter

struct ArbiterParts {
  memory::PoolShape shape;
  std::size_t object_bytes_max;
  std::int64_t fail_backend_call;
  std::shared_ptr<Device> device;  // null: the memory of the host
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<MoveObserver> observer;
};

Result<std::unique_ptr<Arbiter>> make_arbiter(ArbiterParts parts) {
  Result<std::unique_ptr<memory::PageBackend>> backend =
      create_backend(parts.device, parts.fail_backend_call);
  if (!backend.ok()) return backend.status();
  Result<Pool> pool = Pool::create(backend.take(), parts.shape, parts.object_bytes_max);
  if (!pool.ok()) return pool.status();
  return Arbiter::create(pool.take(), std::move(parts.clock), std::move(parts.observer));
}

std::shared_ptr<Arbiter> create_arbiter(std::size_t slab_bytes, std::int32_t slab_count,
                                        std::int32_t header_slabs, std::shared_ptr<Clock> clock,
                                        std::shared_ptr<MoveObserver> observer,
                                        std::size_t object_bytes_max,
                                        std::int64_t fail_backend_call,
                                        std::shared_ptr<Device> device) {
  ArbiterParts parts{{slab_bytes, slab_count, header_slabs},
                     object_bytes_max,
                     fail_backend_call,
                     std::move(device),
                     clock_or_boot(std::move(clock)),
                     std::move(observer)};
  const auto make = [&] {
    const py::gil_scoped_release unlocked;  // a driver takes its time to map a device's memory
    return make_arbiter(std::move(parts));
  };
  return take(make());
}

// ---- classes

void bind_clocks(py::module_& m) {
  py::class_<Clock, std::shared_ptr<Clock>>(m, "Clock").def("now_ns", &Clock::now_ns);
  py::class_<BootClock, Clock, std::shared_ptr<BootClock>>(m, "BootClock").def(py::init<>());
  py::class_<ManualClock, Clock, std::shared_ptr<ManualClock>>(m, "ManualClock")
      .def(py::init<>())
      .def("advance", &ManualClock::advance, py::arg("by_ns"));
}

void bind_enums(py::module_& m) {
  py::native_enum<SlabState>(m, "SlabState", "enum.Enum")
      .value("UNOWNED", SlabState::kUnowned)
      .value("OWNED", SlabState::kOwned)
      .value("GRANTED", SlabState::kGranted)
      .value("REVOKING", SlabState::kRevoking)
      .value("QUIESCED", SlabState::kQuiesced)
      .value("RETURNED", SlabState::kReturned)
      .value("FENCED", SlabState::kFenced)
      .value("QUARANTINED", SlabState::kQuarantined)
      .finalize();
  py::native_enum<GrantRefusal>(m, "GrantRefusal", "enum.Enum")
      .value("STALE_EPOCH", GrantRefusal::kStaleEpoch)
      .value("POOL_EMPTY", GrantRefusal::kPoolEmpty)
      .value("OVER_LIMIT", GrantRefusal::kOverLimit)
      .value("FLOOR", GrantRefusal::kFloor)
      .finalize();
  py::native_enum<RenewAnswer>(m, "RenewAnswer", "enum.Enum")
      .value("RENEWED", RenewAnswer::kRenewed)
      .value("STALE_EPOCH", RenewAnswer::kStaleEpoch)
      .value("REVOKING", RenewAnswer::kRevoking)
      .value("OVER", RenewAnswer::kOver)
      .finalize();
}

void bind_values(py::module_& m) {
  py::class_<Grant>(m, "Grant")
      .def_readonly("lease_id", &Grant::lease_id)
      .def_readonly("lease_epoch", &Grant::lease_epoch)
      .def_readonly("slabs", &Grant::slabs);
  py::class_<RevocationProgress>(m, "RevocationProgress")
      .def_readonly("wanted", &RevocationProgress::wanted)
      .def_readonly("returned", &RevocationProgress::returned)
      .def_readonly("pending", &RevocationProgress::pending)
      .def_readonly("fenced", &RevocationProgress::fenced);
  py::class_<Candidate>(m, "Candidate")
      .def_readonly("slab", &Candidate::slab)
      .def_readonly("used", &Candidate::used)
      .def_readonly("pins", &Candidate::pins);
  using Part = PartitionSnapshot;
  py::class_<Part>(m, "PartitionSnapshot")
      .def_property_readonly("id", [](const Part& p) { return p.partition.id; })
      .def_property_readonly("name", [](const Part& p) { return p.partition.name; })
      .def_property_readonly("reserve_slabs",
                             [](const Part& p) { return p.partition.reserve_slabs; })
      .def_property_readonly("limit_slabs", [](const Part& p) { return p.partition.limit_slabs; })
      .def_property_readonly("held", [](const Part& p) { return p.partition.held; })
      .def_property_readonly("quarantined", [](const Part& p) { return p.partition.quarantined; })
      .def_property_readonly("is_live", [](const Part& p) { return p.partition.is_live; })
      .def_readonly("free_blocks", &Part::free_blocks)
      .def_readonly("used_blocks", &Part::used_blocks)
      .def_readonly("revocable_now", &Part::revocable_now)
      .def_readonly("in_revocation", &Part::in_revocation);
  py::class_<Snapshot>(m, "Snapshot")
      .def_readonly("epoch", &Snapshot::epoch)
      .def_readonly("unowned", &Snapshot::unowned)
      .def_readonly("quarantined", &Snapshot::quarantined)
      .def_readonly("partitions", &Snapshot::partitions);
  py::class_<SlabRecord>(m, "SlabRecord")
      .def_readonly("owner", &SlabRecord::owner)
      .def_readonly("state", &SlabRecord::state)
      .def_readonly("lease_epoch", &SlabRecord::lease_epoch)
      .def_readonly("generation", &SlabRecord::generation);
}

void bind_ledger(py::module_& m) {
  py::class_<LedgerView>(m, "LedgerView")
      .def_static(
          "open", [](int fd) { return take(LedgerView::open(copy_of(fd))); }, py::arg("fd"))
      .def("audit", [](const LedgerView& view) { check(view.audit()); })
      .def("epoch", [](const LedgerView& view) { return take(view.read()).epoch; })
      .def("records", [](const LedgerView& view) { return take(view.read()).slabs; });
}

void bind_allocator(py::module_& m) {
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

void bind_arbiter(py::module_& m) {
  py::class_<MoveObserver, std::shared_ptr<MoveObserver>>(m, "MoveObserver");
  using Self = Arbiter;
  // Taking a device's memory apart may wait for the driver.
  py::class_<Self, std::shared_ptr<Self>>(m, "Arbiter", py::release_gil_before_calling_cpp_dtor())
      .def_static("create", &create_arbiter, py::kw_only(), py::arg("slab_bytes"),
                  py::arg("slab_count"), py::arg("header_slabs"), py::arg("clock") = py::none(),
                  py::arg("observer") = py::none(),
                  py::arg("object_bytes_max") = Pool::kObjectBytesMax,
                  py::arg("fail_backend_call") = 0, py::arg("device") = py::none())
      .def_property_readonly("slab_bytes",
                             [](const Self& a) { return a.pool().shape().slab_bytes; })
      .def_property_readonly("slab_count",
                             [](const Self& a) { return a.pool().shape().slab_count; })
      .def_property_readonly("header_slabs",
                             [](const Self& a) { return a.pool().shape().header_slabs; })
      .def("now_ns", [](const Self& a) { return a.clock().now_ns(); })
      .def_property_readonly("is_on_host", [](const Self& a) { return a.pool().is_on_host(); })
      .def_property_readonly(
          "pool_address",
          [](const Self& a) { return std::bit_cast<std::uintptr_t>(a.pool().data()); })
      .def_property_readonly("pool_bytes", [](const Self& a) { return a.pool().size_bytes(); })
      .def("pool_view",
           [](const py::object& self) { return view_of(self.cast<const Self&>().pool(), self); })
      .def("share_pool", [](const Self& a) { return share(a.pool()); })
      .def(
          "share_slab",
          [](const Self& a, SlabId slab) { return give_fd(take(a.pool().share_slab(slab))); },
          py::arg("slab"))
      .def(
          "share_header",
          [](const Self& a, std::int32_t index) {
            return give_fd(take(a.pool().share_header(index)));
          },
          py::arg("index"))
      .def(
          "scrub",
          [](const Self& a, SlabId slab) {
            const auto scrub = [&] {
              const py::gil_scoped_release unlocked;
              return a.pool().scrub(slab);
            };
            check(scrub());
          },
          py::arg("slab"))
      .def("share_ledger", [](const Self& a) { return give_fd(take(a.share_ledger())); })
      .def(
          "add_partition",
          [](Self& a, std::string name, std::int32_t reserve, std::int32_t limit) {
            return take(a.add_partition(std::move(name), reserve, limit));
          },
          py::arg("name"), py::kw_only(), py::arg("reserve_slabs"), py::arg("limit_slabs"))
      .def(
          "drop_partition", [](Self& a, PartitionId id) { check(a.drop_partition(id)); },
          py::arg("partition"))
      .def(
          "allocator",
          [](Self& a, PartitionId id, std::size_t block_bytes, std::size_t origin_bytes,
             std::int32_t blocks_per_slab_max) {
            return take(a.add_allocator(id, {block_bytes, origin_bytes, blocks_per_slab_max}));
          },
          py::arg("partition"), py::kw_only(), py::arg("block_bytes"), py::arg("origin_bytes"),
          py::arg("blocks_per_slab_max") = 0, py::return_value_policy::reference_internal)
      .def(
          "take", [](Self& a, PartitionId id, std::int32_t n) { return take(a.take(id, n)); },
          py::arg("partition"), py::arg("n"))
      .def(
          "give_back",
          [](Self& a, PartitionId id, std::int32_t n) { return take(a.give_back(id, n)); },
          py::arg("partition"), py::arg("n"))
      .def_property_readonly("epoch", &Self::epoch)
      .def(
          "grant",
          [](Self& a, PartitionId id, std::int32_t n, Nanoseconds ttl_ns, std::uint64_t epoch) {
            memory::GrantAnswer answer = take(a.grant(id, n, ttl_ns, epoch));
            return answer.refusal.has_value() ? py::cast(*answer.refusal)
                                              : py::cast(std::move(answer.grant));
          },
          py::arg("partition"), py::arg("n"), py::kw_only(), py::arg("ttl_ns"),
          py::arg("expected_epoch"))
      .def(
          "renew",
          [](Self& a, memory::LeaseId id, std::uint64_t lease_epoch, Nanoseconds ttl_ns) {
            return take(a.renew(id, lease_epoch, ttl_ns));
          },
          py::arg("lease_id"), py::kw_only(), py::arg("lease_epoch"), py::arg("ttl_ns"))
      .def(
          "expire", [](Self& a, Nanoseconds grace_ns) { return take(a.expire(grace_ns)); },
          py::kw_only(), py::arg("grace_ns"))
      .def(
          "candidates", [](const Self& a, PartitionId id) { return take(a.candidates(id)); },
          py::arg("partition"))
      .def(
          "leaving", [](const Self& a, PartitionId id) { return take(a.leaving(id)); },
          py::arg("partition"))
      .def(
          "revoke",
          [](Self& a, PartitionId id, std::int32_t n, Nanoseconds deadline_ns,
             std::optional<PartitionId> taker, const std::vector<SlabId>& preferred) {
            return take(a.revoke(id, n, deadline_ns, taker.value_or(memory::kNobody), preferred));
          },
          py::arg("partition"), py::arg("n"), py::kw_only(), py::arg("deadline_ns"),
          py::arg("taker") = py::none(), py::arg("preferred") = std::vector<SlabId>{})
      .def(
          "poll", [](Self& a, memory::RevocationId id) { return take(a.poll(id)); },
          py::arg("revocation"))
      .def(
          "wait",
          [](Self& a, memory::RevocationId id, Nanoseconds timeout_ns) {
            // Whoever ends the wait needs the GIL to do so.
            const auto wait = [&] {
              const py::gil_scoped_release unlocked;
              return a.wait(id, timeout_ns);
            };
            return take(wait());
          },
          py::arg("revocation"), py::kw_only(), py::arg("timeout_ns"))
      .def(
          "prove_completion", [](Self& a, PartitionId id) { return take(a.prove_completion(id)); },
          py::arg("partition"))
      .def("snapshot", &Self::snapshot)
      .def("check_invariants", [](const Self& a) { check(a.check_invariants()); });
}

}  // namespace

void bind_memory(py::module_& module) {
  bind_clocks(module);
  bind_enums(module);
  bind_values(module);
  bind_ledger(module);
  bind_allocator(module);
  bind_arbiter(module);
}

}  // namespace rose::bind
