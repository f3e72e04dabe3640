// The pool, its arbiter and the block allocators for Python.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bind/clock.h"
#include "bind/pool.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "memory/arbiter.h"

namespace rose::bind {

namespace py = pybind11;
using driver::Device;
using memory::Arbiter;
using memory::Candidate;
using memory::Grant;
using memory::GrantRefusal;
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

// ---- making an arbiter

struct ArbiterParts {
  memory::PoolShape shape;
  std::size_t object_bytes_max;
  std::int64_t fail_backend_call;
  std::shared_ptr<Device> device;  // null: host memory
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
  // Mapping a device's memory may wait for the driver.
  return take_unlocked([&] { return make_arbiter(std::move(parts)); });
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
      .value("POOL_EMPTY", GrantRefusal::kPoolEmpty)
      .value("OVER_LIMIT", GrantRefusal::kOverLimit)
      .value("AT_RISK", GrantRefusal::kAtRisk)
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
      .def_readonly("generation", &SlabRecord::generation)
      .def_readonly("lease_id", &SlabRecord::lease_id);
}

void bind_arbiter(py::module_& m) {
  py::class_<MoveObserver, std::shared_ptr<MoveObserver>>(m, "MoveObserver");
  py::class_<memory::Admission>(m, "Admission");
  using Self = Arbiter;
  // Releasing a device's memory may wait for the driver.
  UnlockedClass<Self, std::shared_ptr<Self>>(m, "Arbiter")
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
          "clean",
          [](Self& a, PartitionId id, SlabId slab) {
            return take_unlocked([&] { return a.clean(id, slab); });
          },
          py::arg("partition"), py::arg("slab"))
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
          "reopen_partition",
          [](Self& a, PartitionId id, std::int32_t limit) { check(a.reopen_partition(id, limit)); },
          py::arg("partition"), py::kw_only(), py::arg("limit_slabs"))
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
          [](Self& a, PartitionId id, std::int32_t n, Nanoseconds ttl_ns, std::int32_t held_max,
             memory::Admission* admission) {
            memory::GrantAnswer answer = take(a.grant(id, n, ttl_ns, admission, held_max));
            return answer.refusal.has_value() ? py::cast(*answer.refusal)
                                              : py::cast(std::move(answer.grant));
          },
          py::arg("partition"), py::arg("n"), py::kw_only(), py::arg("ttl_ns"),
          py::arg("held_max") = std::numeric_limits<std::int32_t>::max(),
          py::arg("admission") = py::none())
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
          "revoke",
          [](Self& a, PartitionId id, std::int32_t n, Nanoseconds deadline_ns,
             std::optional<PartitionId> taker) {
            return take(a.revoke(id, n, deadline_ns, taker.value_or(memory::kNobody)));
          },
          py::arg("partition"), py::arg("n"), py::kw_only(), py::arg("deadline_ns"),
          py::arg("taker") = py::none())
      .def(
          "poll", [](Self& a, memory::RevocationId id) { return take(a.poll(id)); },
          py::arg("revocation"))
      .def(
          "wait",
          [](Self& a, memory::RevocationId id, Nanoseconds timeout_ns) {
            // Another Python thread may have to free the blocks for which this call waits.
            return take_unlocked([&] { return a.wait(id, timeout_ns); });
          },
          py::arg("revocation"), py::kw_only(), py::arg("timeout_ns"))
      .def(
          "prove_completion", [](Self& a, PartitionId id) { return take(a.prove_completion(id)); },
          py::arg("partition"))
      .def(
          "watch",
          [](Self& a, PartitionId id, std::int64_t demand_blocks, std::int32_t blocks_per_slab,
             std::int64_t taking) {
            return take(a.watch(id, demand_blocks, blocks_per_slab, taking));
          },
          py::arg("partition"), py::kw_only(), py::arg("demand_blocks"), py::arg("blocks_per_slab"),
          py::arg("taking") = 0)
      .def(
          "is_short",
          [](const Self& a, PartitionId id, std::int64_t taking) {
            return take(a.is_short(id, taking));
          },
          py::arg("partition"), py::kw_only(), py::arg("taking") = 0)
      .def("listen", &Self::listen, py::arg("seen"), py::kw_only(), py::arg("timeout_ns"),
           gil_released())
      .def("ring", &Self::ring)
      .def("snapshot", &Self::snapshot)
      .def("check_invariants", [](const Self& a) { check(a.check_invariants()); });
}

}  // namespace

void bind_memory(py::module_& module) {
  bind_clocks(module);
  bind_enums(module);
  bind_values(module);
  bind_arbiter(module);
}

}  // namespace rose::bind
