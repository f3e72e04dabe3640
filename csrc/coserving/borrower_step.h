// The start of a borrower's step: its quantum at the gate, and the slabs that its plan may use.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "compute/host_gate.h"
#include "compute/stream_gate.h"
#include "memory/attachment.h"

namespace rose::coserving {

// Starts a step at the gate: waits for a quantum and starts the first segment. `pass` is
// HostGate::pass() with a timeout. Returns nothing, without a wait, while the borrower has slabs
// past their deadline: no step may start until these slabs are empty. With any verdict but kPassed
// no step runs.
//
// Thread rule: the borrower's thread.
std::optional<compute::Verdict> start_step(const memory::Attachment& tenant,
                                           compute::HostGate& gate,
                                           const std::function<compute::Verdict()>& pass);
// The same at a gate in a stream. The first segment has passed that gate when the call returns,
// because an engine that prepares a step may wait for its stream.
Result<std::optional<compute::Verdict>> start_step(const memory::Attachment& tenant,
                                                   compute::StreamGate& gate,
                                                   Nanoseconds timeout_ns) noexcept;

// The slabs of a borrower when it plans a step.
struct PlannedSlabs {
  std::vector<memory::SlabId> leaving;  // to be emptied: see Attachment::leaving()
  std::vector<memory::SlabId> lent;     // all others
};

// The life of a plan:
//   begin_plan()  from here on, no slab with blocks in use is given up
//   (the engine frees the blocks in leaving slabs, and pins the blocks of its step)
//   end_plan()    order[i] is the i-th slab that the arbiter should take; the hold ends
//
// After an error of begin_plan() there is no plan. end_plan() ends the plan even if it returns
// InvalidArgument, for a slab that does not exist; then no rank has changed.
//
// Thread rule: any thread.
Result<PlannedSlabs> begin_plan(memory::Attachment& tenant) noexcept;
Status end_plan(memory::Attachment& tenant, std::span<const memory::SlabId> order) noexcept;

}  // namespace rose::coserving
