// The ledger for Python; any process can read it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "base/process.h"
#include "bind/status.h"
#include "memory/ledger.h"

namespace rose::bind {

namespace py = pybind11;
using memory::LedgerView;
using memory::PartitionRecord;
using memory::RevocationNote;
using memory::SlabRecord;

namespace {

LedgerView open_ledger(int fd) { return take(LedgerView::open(take(duplicate_fd(fd)))); }

void bind_partition_record(py::module_& m) {
  using Note = RevocationNote;
  py::class_<Note>(m, "RevocationNote")
      .def_readonly("id", &Note::id)
      .def_readonly("wanted", &Note::wanted)
      .def_readonly("pending", &Note::pending)
      .def_readonly("deadline_ns", &Note::deadline_ns)
      .def_readonly("due_ns", &Note::due_ns);
  using Part = PartitionRecord;
  py::class_<Part>(m, "PartitionRecord")
      .def_property_readonly("id", [](const Part& p) { return p.partition.id; })
      .def_property_readonly("name", [](const Part& p) { return p.partition.name; })
      .def_property_readonly("is_live", [](const Part& p) { return p.partition.is_live; })
      .def_property_readonly("reserve_slabs",
                             [](const Part& p) { return p.partition.reserve_slabs; })
      .def_property_readonly("limit_slabs", [](const Part& p) { return p.partition.limit_slabs; })
      .def_property_readonly("held", [](const Part& p) { return p.partition.held; })
      .def_property_readonly("quarantined", [](const Part& p) { return p.partition.quarantined; })
      .def_readonly("leases", &Part::leases)
      .def_readonly("free_blocks", &Part::free_blocks)
      .def_readonly("used_blocks", &Part::used_blocks)
      .def_property_readonly("pins", [](const Part& p) { return p.pins.count; })
      .def_property_readonly("oldest_pin_ns", [](const Part& p) { return p.pins.oldest_ns; })
      .def_property_readonly("revocation", [](const Part& p) {
        return p.revocation.id == 0 ? std::nullopt : std::optional{p.revocation};
      });
}

void bind_view(py::module_& m) {
  // Shared, because an attachment holds the same view.
  py::class_<LedgerView, std::shared_ptr<LedgerView>>(m, "LedgerView")
      .def_static("open", &open_ledger, py::arg("fd"))
      .def_property_readonly("slab_bytes", [](const LedgerView& v) { return v.shape().slab_bytes; })
      .def_property_readonly("slab_count", [](const LedgerView& v) { return v.shape().slab_count; })
      .def_property_readonly("header_slabs",
                             [](const LedgerView& v) { return v.shape().header_slabs; })
      .def("audit", [](const LedgerView& view) { check(view.audit()); })
      .def("epoch", [](const LedgerView& view) { return take(view.read()).epoch; })
      .def("changed_ns", [](const LedgerView& view) { return take(view.read()).changed_ns; })
      .def("records", [](const LedgerView& view) { return take(view.read()).slabs; })
      .def("partitions", [](const LedgerView& view) { return take(view.read()).partitions; });
}

}  // namespace

void bind_ledger(py::module_& module) {
  bind_partition_record(module);
  bind_view(module);
}

}  // namespace rose::bind
