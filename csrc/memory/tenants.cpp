// Tenants in other processes: their lines, and the return of their slabs.
#include <string>
#include <utility>

#include "memory/arbiter.h"
#include "memory/remote_holder.h"

namespace rose::memory {

Result<std::shared_ptr<TenantLine>> Arbiter::add_tenant(PartitionId id, Notify notify_at) noexcept {
  const PoolShape shape = pool_.shape();
  const Transaction transaction{*this};
  ROSE_TRY(check_live(id));
  std::unique_ptr<SlabHolder>& place = holders_[static_cast<std::size_t>(id)];
  if (place != nullptr) {
    return Status::invalid_argument("partition '" + partition(id).name +
                                    "' has an allocator or a tenant already");
  }
  Result<Mailbox> mailbox = Mailbox::create(shape, id, slabs_.ledger().pool());
  if (!mailbox.ok()) return mailbox.status();
  Result<std::shared_ptr<TenantLine>> line = TenantLine::create(mailbox.take());
  if (!line.ok()) return line.status();
  place = std::make_unique<RemoteHolder>(shape, line.value(), notify_at);
  lines_.emplace(id, line.value());
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    if (slabs_[slab].owner == id) place->add_slab(slab, slabs_[slab].generation);
  }
  return line;
}

Status Arbiter::reopen_partition(PartitionId id, std::int32_t limit_slabs) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_known(id));
  Partition& one = partition(id);
  if (one.is_live) {
    return Status::invalid_argument("partition '" + one.name +
                                    "' cannot be reopened: it was not dropped");
  }
  if (limit_slabs < one.reserve_slabs) {
    return Status::invalid_argument("the limit of partition '" + one.name +
                                    "' must be at least its reserve of " +
                                    std::to_string(one.reserve_slabs) + " slabs, got " +
                                    std::to_string(limit_slabs) + " slabs");
  }
  if (one.held + one.quarantined > 0) {
    return Status::unavailable("partition '" + one.name + "' cannot be reopened: " +
                               std::to_string(one.held + one.quarantined) +
                               " slabs of its previous tenant have not returned yet");
  }
  if (one.reserve_slabs > spare_for(id)) {
    return Status::unavailable("partition '" + one.name + "' cannot be reopened: its reserve of " +
                               std::to_string(one.reserve_slabs) +
                               " slabs is lent now: revoke loans first");
  }
  // This partition's former record is free again: show() freed it after the last slab returned.
  PartitionRecord* place = free_place();
  if (place == nullptr) {
    return Status::unavailable("partition '" + one.name + "' cannot be reopened: at most " +
                               std::to_string(kPartitionsMax) +
                               " partitions can exist at a time: drop one first");
  }
  holders_[static_cast<std::size_t>(id)].reset();
  lines_.erase(id);
  one.limit_slabs = limit_slabs;
  one.is_live = true;
  *place = {one, 0, 0, 0, {}, {}};
  has_changed_ = true;
  return {};
}

Result<std::shared_ptr<TenantLine>> Arbiter::line_of(PartitionId id) const noexcept {
  const std::lock_guard lock{books_};
  const auto found = lines_.find(id);
  if (found != lines_.end()) return found->second;
  return Status::invalid_argument("partition " + std::to_string(id) +
                                  " has no tenant in another process");
}

Result<std::int32_t> Arbiter::sweep(PartitionId id) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_known(id));
  return sweep_locked(id);
}

Result<std::int32_t> Arbiter::sweep_locked(PartitionId id) noexcept {
  if (holder_of(id) == nullptr || holder_of(id)->reports_idle()) return 0;
  const Result<std::int32_t> given = take_given(id);
  if (!given.ok()) return given.status();
  std::int32_t left = 0;
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    const Result<bool> is_back = bring_back(id, slab);
    if (!is_back.ok()) return is_back.status();
    left += is_back.value() ? 1 : 0;
  }
  return given.value() + left;
}

Status Arbiter::sweep_slab(PartitionId id, SlabId slab) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_known(id));
  return bring_back(id, slab).status();
}

Result<bool> Arbiter::bring_back(PartitionId id, SlabId slab) noexcept {
  if (slabs_[slab].owner != id) return false;
  const bool is_late = slabs_[slab].state == SlabState::kQuarantined;
  if ((!is_late && slabs_[slab].state != SlabState::kRevoking) || !is_idle(slab)) return false;
  ROSE_TRY(is_late ? release_quarantined(slab) : bring_home(slab));
  return true;
}

// Takes back slabs that the tenant returned by itself.
Result<std::int32_t> Arbiter::take_given(PartitionId id) noexcept {
  SlabHolder* holder = holder_of(id);
  victims_.clear();
  std::int32_t own = 0;
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    if (slabs_[slab].owner != id || !holder->has_given(slab)) continue;
    if (slabs_[slab].state == SlabState::kGranted) victims_.push_back(slab);
    if (slabs_[slab].state != SlabState::kOwned) continue;
    holder->remove_slab(slab);
    ROSE_TRY(release_own(slab));
    ++own;
  }
  if (own > 0) announce({MoveKind::kGiveBack, id, kNobody, own});
  const auto lent = static_cast<std::int32_t>(victims_.size());
  if (lent > 0) {
    ROSE_TRY(revoke_victims(open_revocation(id, kNobody, clock_->now_ns(), lent)));
  }
  return own + lent;
}

Result<std::int32_t> Arbiter::lose_tenant(PartitionId id) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_known(id));
  SlabHolder* holder = holder_of(id);
  if (holder == nullptr) return 0;
  if (holder->reports_idle()) {
    return Status::invalid_argument("the tenant of partition '" + partition(id).name +
                                    "' is this process, which still runs");
  }
  const std::int32_t lost = partition(id).held + partition(id).quarantined;
  holder->lose();
  const Result<std::int32_t> swept = sweep_locked(id);
  if (!swept.ok()) return swept.status();
  ROSE_TRY(drop_locked(id));
  holders_[static_cast<std::size_t>(id)].reset();
  lines_.erase(id);
  return lost;
}

}  // namespace rose::memory
