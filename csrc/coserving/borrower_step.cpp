#include "coserving/borrower_step.h"

#include <cstdint>
#include <numeric>

namespace rose::coserving {

using compute::HostGate;
using compute::StreamGate;
using compute::Verdict;
using memory::Attachment;

namespace {

// After a shut-down nobody takes slabs back any more, so late slabs do not matter.
bool is_late(const Attachment& tenant, const HostGate& gate) noexcept {
  return !gate.is_shut_down() && tenant.is_late();
}

Result<Verdict> pass_and_settle(StreamGate& gate, Nanoseconds timeout_ns) noexcept {
  const Result<Verdict> passed = gate.pass(timeout_ns);
  if (!passed.ok() || passed.value() != Verdict::kPassed) return passed;
  return gate.settle(timeout_ns);
}

}  // namespace

std::optional<Verdict> start_step(const Attachment& tenant, HostGate& gate,
                                  const std::function<Verdict()>& pass) {
  if (is_late(tenant, gate)) return std::nullopt;
  gate.begin_step();
  const Verdict verdict = pass();
  if (verdict != Verdict::kPassed) gate.end_step();
  return verdict;
}

Result<std::optional<Verdict>> start_step(const Attachment& tenant, StreamGate& gate,
                                          Nanoseconds timeout_ns) noexcept {
  if (is_late(tenant, gate.gate())) return std::optional<Verdict>{};
  gate.begin_step();
  const Result<Verdict> verdict = pass_and_settle(gate, timeout_ns);
  if (!verdict.ok() || verdict.value() != Verdict::kPassed) gate.end_step();
  if (!verdict.ok()) return verdict.status();
  return std::optional{verdict.value()};
}

Result<PlannedSlabs> begin_plan(Attachment& tenant) noexcept {
  tenant.hold();
  Result<std::vector<memory::SlabId>> leaving = tenant.leaving();
  Result<std::vector<memory::SlabId>> lent = tenant.lent();
  if (leaving.ok() && lent.ok()) return PlannedSlabs{leaving.take(), lent.take()};
  tenant.release();
  return leaving.ok() ? lent.status() : leaving.status();
}

Status end_plan(Attachment& tenant, std::span<const memory::SlabId> order) noexcept {
  tenant.release();
  std::vector<std::uint32_t> ranks(order.size());
  std::iota(ranks.begin(), ranks.end(), 0U);
  return tenant.set_ranks(order, ranks);
}

}  // namespace rose::coserving
