// Tenants in other processes, for Python: classes for the arbiter's process, and for the tenant's.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/clock.h"
#include "bind/pool.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "coserving/borrower_step.h"
#include "coserving/tenant.h"
#include "memory/attachment.h"
#include "memory/tenant_watch.h"

namespace rose::bind {

namespace py = pybind11;
using coserving::Tenant;
using driver::Device;
using memory::Arbiter;
using memory::Attachment;
using memory::LedgerView;
using memory::PartitionId;
using memory::Pool;
using memory::PoolExport;
using memory::SlabId;
using memory::TenantNews;
using memory::TenantWatch;

namespace {

// Maps the pool of another process; the export stays unchanged.
Result<Pool> map_pool(const PoolExport& from, const std::shared_ptr<Device>& device) {
  PoolExport copy{from.shape, {}, from.sizes, from.is_on_host};
  for (const FileDescriptor& object : from.objects) {
    Result<FileDescriptor> fd = object.duplicate();
    if (!fd.ok()) return fd.status();
    copy.objects.push_back(fd.take());
  }
  Result<std::unique_ptr<memory::PageBackend>> backend = create_backend(device, 0);
  if (!backend.ok()) return backend.status();
  return Pool::attach(backend.take(), std::move(copy));
}

// ---- in the arbiter's process

std::unique_ptr<Tenant> add_tenant(std::shared_ptr<Arbiter> arbiter, PartitionId partition,
                                   const Process& process, bool kill_late, bool is_mapped) {
  const auto notify_at = is_mapped ? memory::Notify::kWhenClean : memory::Notify::kAtGrant;
  return take(Tenant::create(std::move(arbiter), partition, process, notify_at, kill_late));
}

// Raises after the tenant's close().
std::shared_ptr<const TenantWatch> watch_of(const Tenant& tenant) {
  std::shared_ptr<const TenantWatch> watch = tenant.watch();
  if (watch == nullptr) {
    raise(Status::invalid_argument("the tenant cannot be used after its close()"));
  }
  return watch;
}

void bind_process(py::module_& m) {
  py::class_<Process>(m, "Process")
      .def_static(
          "open", [](pid_t pid) { return take(Process::open(pid)); }, py::arg("pid"))
      .def_static(
          "of_peer", [](int fd) { return take(Process::of_peer(fd)); }, py::arg("socket_fd"))
      .def_property_readonly("pid", &Process::pid)
      .def_property_readonly("uid", [](const Process& p) { return static_cast<int>(p.uid()); })
      .def_property_readonly("is_alive", &Process::is_alive)
      .def("fileno", &Process::get);
}

void bind_tenant(py::module_& m) {
  using Self = Tenant;
  const auto report = [](const Self& t) { return t.report(); };
  UnlockedClass<Self>(m, "Tenant")
      .def_property_readonly("partition", [](const Self& t) { return watch_of(t)->partition(); })
      .def_property_readonly("pid", [](const Self& t) { return watch_of(t)->process().pid(); })
      .def_property_readonly("is_alive", &Self::is_alive)
      .def_property_readonly("was_killed", [](const Self& t) { return watch_of(t)->was_killed(); })
      .def_property_readonly("mailbox_fd",
                             [](const Self& t) { return watch_of(t)->line().mailbox.fd(); })
      .def_property_readonly("to_arbiter_fd",
                             [](const Self& t) { return watch_of(t)->line().to_arbiter.get(); })
      .def_property_readonly("to_tenant_fd",
                             [](const Self& t) { return watch_of(t)->line().to_tenant.get(); })
      .def_property_readonly("heartbeat_ns",
                             [report](const Self& t) { return report(t).heartbeat_ns; })
      .def_property_readonly("progress", [report](const Self& t) { return report(t).progress; })
      .def_property_readonly("free_blocks",
                             [report](const Self& t) { return report(t).free_blocks; })
      .def_property_readonly("used_blocks",
                             [report](const Self& t) { return report(t).used_blocks; })
      .def_property_readonly("cached_blocks",
                             [report](const Self& t) { return report(t).cached_blocks; })
      .def(
          "wait_lost",
          [](const Self& t, double timeout_ms) {
            const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
            const auto watch = watch_of(t);
            const bool is_lost = unlocked([&] { return watch->wait_lost(timeout_ns); });
            check(watch->failure());
            return is_lost;
          },
          py::kw_only(), py::arg("timeout_ms"))
      .def("sweep", [](const Self& t) { return take(t.arbiter().sweep(watch_of(t)->partition())); })
      .def("ring", [](const Self& t) { t.ring(); })
      // Makes the watch kill the tenant's process, as after a missed deadline. Does not wait for
      // the process to end.
      .def("evict", [](const Self& t) { t.evict(); })
      .def("close", &Self::close, gil_released());
}

// ---- in the tenant's process

struct Fds {
  int ledger;
  int mailbox;
  int to_arbiter;
  int to_tenant;
  int socket;
};

memory::AttachmentParts copies_of(const Fds& fds) {
  memory::AttachmentParts parts;
  parts.ledger = take(duplicate_fd(fds.ledger));
  parts.mailbox = take(duplicate_fd(fds.mailbox));
  parts.to_arbiter = take(duplicate_fd(fds.to_arbiter));
  parts.to_tenant = take(duplicate_fd(fds.to_tenant));
  if (fds.socket >= 0) parts.socket = take(duplicate_fd(fds.socket));
  return parts;
}

std::unique_ptr<Attachment> attach_tenant(const PoolExport& pool, int ledger_fd, int mailbox_fd,
                                          int to_arbiter_fd, int to_tenant_fd, int socket_fd,
                                          const std::shared_ptr<Device>& device) {
  memory::AttachmentParts parts =
      copies_of({ledger_fd, mailbox_fd, to_arbiter_fd, to_tenant_fd, socket_fd});
  // Mapping a device's memory may wait for the driver.
  return take_unlocked([&]() -> Result<std::unique_ptr<Attachment>> {
    Result<Pool> mapped = map_pool(pool, device);
    if (!mapped.ok()) return mapped.status();
    return Attachment::create(mapped.take(), std::move(parts));
  });
}

std::unique_ptr<Attachment> attach_mapped(std::size_t slab_bytes, std::int32_t slab_count,
                                          std::int32_t header_slabs, int ledger_fd, int mailbox_fd,
                                          int to_arbiter_fd, int to_tenant_fd, int socket_fd) {
  return take(Attachment::create_mapped(
      {slab_bytes, slab_count, header_slabs},
      copies_of({ledger_fd, mailbox_fd, to_arbiter_fd, to_tenant_fd, socket_fd})));
}

const Pool& pool_of(const Attachment& a) {
  if (a.pool() == nullptr) {
    raise(Status::invalid_argument(
        "this attachment maps no pool, only single slabs: use MappedWindow"));
  }
  return *a.pool();
}

void check_own(const Attachment& attachment, PartitionId partition) {
  if (partition == attachment.partition()) return;
  raise(Status::invalid_argument("the attachment belongs to partition " +
                                 std::to_string(attachment.partition()) + ", got partition " +
                                 std::to_string(partition)));
}

void bind_attachment(py::module_& m) {
  using Self = Attachment;
  py::class_<TenantNews>(m, "TenantNews")
      .def_readonly("closed", &TenantNews::closed)
      .def_readonly("taken", &TenantNews::taken)
      .def_readonly("admitted", &TenantNews::admitted)
      .def_readonly("was_rung", &TenantNews::was_rung)
      .def_readonly("is_arbiter_gone", &TenantNews::is_arbiter_gone);
  UnlockedClass<Self>(m, "Attachment")
      .def_static("create", &attach_tenant, py::kw_only(), py::arg("pool"), py::arg("ledger_fd"),
                  py::arg("mailbox_fd"), py::arg("to_arbiter_fd"), py::arg("to_tenant_fd"),
                  py::arg("socket_fd") = -1, py::arg("device") = py::none())
      // In the arbiter's own process, for a tenant that add_tenant() made.
      .def_static(
          "create_here",
          [](std::shared_ptr<Arbiter> arbiter, PartitionId partition) {
            return take(Attachment::create_here(std::move(arbiter), partition));
          },
          py::arg("arbiter"), py::arg("partition"))
      .def_static("create_mapped", &attach_mapped, py::kw_only(), py::arg("slab_bytes"),
                  py::arg("slab_count"), py::arg("header_slabs"), py::arg("ledger_fd"),
                  py::arg("mailbox_fd"), py::arg("to_arbiter_fd"), py::arg("to_tenant_fd"),
                  py::arg("socket_fd") = -1)
      .def(
          "reach", [](Self& a, const std::vector<SlabId>& slabs) { check(a.reach(slabs)); },
          py::arg("slabs"))
      .def("retire", [](Self& a) { return take(a.retire()); })
      .def_property_readonly("partition", &Self::partition)
      .def_property_readonly("slab_bytes", [](const Self& a) { return a.shape().slab_bytes; })
      .def_property_readonly("slab_count", [](const Self& a) { return a.shape().slab_count; })
      .def_property_readonly("header_slabs", [](const Self& a) { return a.shape().header_slabs; })
      .def("now_ns", [](const Self&) { return BootClock{}.now_ns(); })
      .def_property_readonly("is_on_host", [](const Self& a) { return pool_of(a).is_on_host(); })
      .def_property_readonly(
          "pool_address",
          [](const Self& a) { return std::bit_cast<std::uintptr_t>(pool_of(a).data()); })
      .def_property_readonly("pool_bytes", [](const Self& a) { return a.shape().total_bytes(); })
      .def("pool_view",
           [](const py::object& self) { return view_of(pool_of(self.cast<const Self&>()), self); })
      .def_property_readonly(
          "ledger", [](const Self& a) { return std::const_pointer_cast<LedgerView>(a.ledger()); })
      .def(
          "allocator",
          [](Self& a, PartitionId partition, std::size_t block_bytes, std::size_t origin_bytes,
             std::int32_t blocks_per_slab_max) {
            check_own(a, partition);
            return take(a.add_allocator({block_bytes, origin_bytes, blocks_per_slab_max}));
          },
          py::arg("partition"), py::kw_only(), py::arg("block_bytes"), py::arg("origin_bytes"),
          py::arg("blocks_per_slab_max") = 0, py::return_value_policy::reference_internal)
      .def(
          "news",
          [](Self& a, double timeout_ms) {
            const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
            return take_unlocked([&] { return a.news(timeout_ns); });
          },
          py::kw_only(), py::arg("timeout_ms"))
      .def(
          "attend",
          [](Self& a, double every_ms) { check(a.attend(ns_of_ms(every_ms, "every_ms"))); },
          py::kw_only(), py::arg("every_ms"))
      .def("wake", &Self::wake)
      .def("begin_plan",
           [](Self& a) {
             coserving::PlannedSlabs slabs = take(coserving::begin_plan(a));
             return std::pair{std::move(slabs.leaving), std::move(slabs.lent)};
           })
      .def(
          "end_plan",
          [](Self& a, const std::vector<SlabId>& order) { check(coserving::end_plan(a, order)); },
          py::arg("order"))
      .def("look", [](Self& a) { return take(a.look()); })
      .def("lent", [](Self& a) { return take(a.lent()); })
      .def("leaving", [](Self& a) { return take(a.leaving()); })
      .def("is_late", &Self::is_late)
      .def("revocation", [](const Self& a) { return take(a.revocation()); })
      .def("beat", &Self::beat, py::kw_only(), py::arg("progress") = 0)
      .def("give_idle", [](Self& a) { return take(a.give_idle()); })
      .def("close", [](Self& a) { check_unlocked([&] { return a.close(); }); });
}

// Adds the methods for tenants in other processes to the class of the arbiter.
void extend_arbiter(py::module_& m) {
  py::object arbiter = m.attr("Arbiter");
  auto& cls = static_cast<py::class_<Arbiter, std::shared_ptr<Arbiter>>&>(arbiter);
  cls.def("add_tenant", &add_tenant, py::arg("partition"), py::arg("process"), py::kw_only(),
          py::arg("kill_late") = true, py::arg("is_mapped") = false)
      .def(
          "sweep", [](Arbiter& a, PartitionId id) { return take(a.sweep(id)); },
          py::arg("partition"))
      .def(
          "lose_tenant", [](Arbiter& a, PartitionId id) { return take(a.lose_tenant(id)); },
          py::arg("partition"));
}

}  // namespace

void bind_tenants(py::module_& module) {
  bind_process(module);
  bind_tenant(module);
  bind_attachment(module);
  extend_arbiter(module);
}

}  // namespace rose::bind
