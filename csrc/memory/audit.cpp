// The arbiter recounts its slabs, leases and revocations.
#include <string>
#include <unordered_map>

#include "memory/arbiter.h"

namespace rose::memory {

Snapshot Arbiter::snapshot() const noexcept {
  const std::lock_guard lock{books_};
  Snapshot all{epoch_, slabs_.unowned(), slabs_.quarantined(), {}};
  for (const Partition& one : partitions_) {
    PartitionSnapshot& shown = all.partitions.emplace_back();
    shown.partition = one;
    if (holder_of(one.id) == nullptr) continue;
    const BlockTotals totals = holder_of(one.id)->totals();
    shown.free_blocks = totals.free;
    shown.used_blocks = totals.used;
  }
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    const SlabRecord& record = slabs_[slab];
    if (record.owner == kNobody) continue;
    PartitionSnapshot& owner = all.partitions[static_cast<std::size_t>(record.owner)];
    if (record.state == SlabState::kGranted && is_idle(slab)) ++owner.revocable_now;
    if (record.state == SlabState::kRevoking) ++owner.in_revocation;
  }
  return all;
}

Status Arbiter::check_invariants() const noexcept {
  const std::lock_guard lock{books_};
  ROSE_TRY(slabs_.audit());
  std::int64_t shortfall = 0;
  std::int32_t held = 0;
  std::int32_t quarantined = 0;
  for (const Partition& one : partitions_) {
    ROSE_TRY(audit_partition(one));
    shortfall += one.shortfall();
    held += one.held;
    quarantined += one.quarantined;
  }
  ROSE_CHECK(slabs_.unowned() + held + quarantined == slabs_.size(),
             "free + owned + quarantined slabs are not all slabs");
  ROSE_CHECK(slabs_.quarantined() == quarantined, "a quarantined slab belongs to no partition");
  ROSE_CHECK(slabs_.unowned() >= shortfall, "a reserve can no longer be filled");
  return audit_loans();
}

Status Arbiter::audit_partition(const Partition& one) const noexcept {
  std::int32_t held = 0;
  std::int32_t quarantined = 0;
  const SlabHolder* holder = holder_of(one.id);
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    const SlabState state = slabs_[slab].state;
    const bool is_mine = slabs_[slab].owner == one.id;
    if (is_mine && is_held(state)) ++held;
    if (is_mine && state == SlabState::kQuarantined) ++quarantined;
    if (holder == nullptr) continue;
    SlabUse due = SlabUse::kAbsent;
    if (is_mine) {
      due = state == SlabState::kRevoking      ? SlabUse::kClosed
            : state == SlabState::kQuarantined ? SlabUse::kQuarantined
                                               : SlabUse::kOpen;
    }
    ROSE_TRY(holder->audit_slab(slab, due, slabs_[slab].generation));
    ROSE_CHECK(!is_mine || due == SlabUse::kOpen || !holder->reports_idle() || !is_idle(slab),
               "slab " + std::to_string(slab) + " is idle but was not returned");
  }
  ROSE_CHECK(held == one.held && quarantined == one.quarantined,
             "'" + one.name + "' holds a number of slabs that differs from its count");
  ROSE_CHECK(held + quarantined <= one.limit_slabs, "'" + one.name + "' is over its limit");
  ROSE_CHECK(one.is_live || held == 0, "'" + one.name + "' was dropped but still holds slabs");
  return holder == nullptr ? Status{} : holder->audit();
}

Status Arbiter::audit_loans() const noexcept {
  std::unordered_map<LeaseId, std::int32_t> granted;
  std::unordered_map<LeaseId, std::int32_t> revoking;
  std::unordered_map<RevocationId, std::int32_t> pending;
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    const SlabRecord& record = slabs_[slab];
    const bool is_revoking = record.state == SlabState::kRevoking;
    const RevocationId by = revoked_by_[static_cast<std::size_t>(slab)];
    ROSE_CHECK((by != 0) == is_revoking,
               "slab " + std::to_string(slab) +
                   " is in state REVOKING without a revocation, or has a revocation in another "
                   "state");
    if (is_revoking) ++pending[by];
    if (!is_revoking && record.state != SlabState::kGranted) continue;
    const LeaseId lease_id = slabs_.lease_of(slab);
    const auto lease = leases_.find(lease_id);
    ROSE_CHECK(lease != leases_.end() && lease->second.partition == record.owner &&
                   lease->second.lease_epoch == record.lease_epoch,
               "slab " + std::to_string(slab) + " is lent without a lease of its owner");
    ++(is_revoking ? revoking : granted)[lease_id];
  }
  for (const auto& [id, lease] : leases_) {
    ROSE_CHECK(
        granted[id] == lease.granted && revoking[id] == lease.revoking &&
            lease.granted + lease.revoking > 0,
        "lease " + std::to_string(id) + " has a number of slabs that differs from its count");
  }
  for (const auto& [id, revocation] : revocations_) {
    ROSE_CHECK(pending[id] == revocation.progress.pending,
               "revocation " + std::to_string(id) +
                   " has a number of pending slabs that differs from its count");
  }
  return {};
}

}  // namespace rose::memory
