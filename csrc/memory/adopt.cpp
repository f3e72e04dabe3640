// An arbiter that takes over from one that is gone.
#include <string>
#include <utility>

#include "memory/arbiter.h"
#include "memory/rebuild.h"
#include "memory/remote_holder.h"

namespace rose::memory {

namespace {

SlabUse use_of(SlabState state) noexcept {
  if (state == SlabState::kRevoking) return SlabUse::kClosed;
  return state == SlabState::kQuarantined ? SlabUse::kQuarantined : SlabUse::kOpen;
}

Result<std::vector<Mailbox>> open_mailboxes(const LedgerView& ledger,
                                            std::span<const Survivor> survivors) noexcept {
  std::vector<Mailbox> mailboxes;
  for (const Survivor& survivor : survivors) {
    Result<Mailbox> mailbox = Mailbox::open(survivor.mailbox, ledger.shape());
    if (!mailbox.ok()) return mailbox.status();
    if (mailbox.value().pool() != ledger.pool() ||
        mailbox.value().partition() != survivor.partition) {
      return Status::corrupt("the mailbox of a survivor belongs to another partition or pool");
    }
    mailboxes.push_back(mailbox.take());
  }
  return mailboxes;
}

}  // namespace

Result<std::unique_ptr<Arbiter>> Arbiter::adopt(Pool pool, const LedgerView& ledger,
                                                std::span<const Survivor> survivors,
                                                Nanoseconds ttl_ns, Nanoseconds grace_ns,
                                                std::shared_ptr<const Clock> clock,
                                                std::shared_ptr<MoveObserver> observer) noexcept {
  ROSE_TRY(check_duration("ttl_ns", ttl_ns, 1));
  ROSE_TRY(check_duration("grace_ns", grace_ns, 0));
  const PoolShape shape = pool.shape();
  if (shape != ledger.shape()) {
    return Status::invalid_argument("the ledger is of a pool of another shape");
  }
  Result<std::vector<Mailbox>> mailboxes = open_mailboxes(ledger, survivors);
  if (!mailboxes.ok()) return mailboxes.status();
  std::vector<Heir> heirs;
  for (std::size_t i = 0; i < survivors.size(); ++i) {
    heirs.push_back({survivors[i].partition, &mailboxes.value()[i]});
  }
  Result<Inheritance> inherited = inherit(ledger, heirs);
  if (!inherited.ok()) return inherited.status();
  Result<SlabTable> slabs =
      SlabTable::create(shape, std::move(inherited.value().slabs), ledger.pool());
  if (!slabs.ok()) return slabs.status();
  std::unique_ptr<Arbiter> made{
      new Arbiter{std::move(pool), slabs.take(), std::move(clock), std::move(observer)}};
  const Turn turn{*made};
  made->take_over(inherited.value(), ttl_ns);
  for (Mailbox& mailbox : mailboxes.value()) ROSE_TRY(made->resume(std::move(mailbox), grace_ns));
  ROSE_TRY(made->revoke_claims(inherited.value().claimed, grace_ns));
  return made;
}

// Partitions and leases, from the records of the table.
void Arbiter::take_over(const Inheritance& inherited, Nanoseconds ttl_ns) noexcept {
  epoch_ = inherited.epoch;
  next_lease_ = inherited.next_lease;
  partitions_ = inherited.partitions;
  holders_.resize(partitions_.size());
  accounts_.resize(partitions_.size());
  for (const Partition& one : partitions_) {
    if (one.is_live || one.quarantined > 0) *free_place() = {one, 0, 0, 0, {}};
  }
  const Nanoseconds expires_ns = clock_->now_ns() + ttl_ns;
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    const SlabRecord& record = slabs_[slab];
    if (record.lease_id == 0) continue;
    const auto [lease, is_new] =
        leases_.try_emplace(record.lease_id, Lease{record.owner, epoch_, expires_ns, 0, 0});
    if (is_new) ++accounts_[static_cast<std::size_t>(record.owner)].leases;
    ++(record.state == SlabState::kGranted ? lease->second.granted : lease->second.revoking);
  }
}

// A survivor goes on: its line has new bells, and its words stay as they are.
Status Arbiter::resume(Mailbox mailbox, Nanoseconds grace_ns) noexcept {
  const PartitionId id = mailbox.partition();
  Result<std::shared_ptr<TenantLine>> line = TenantLine::create(std::move(mailbox));
  if (!line.ok()) return line.status();
  auto holder = std::make_unique<RemoteHolder>(pool_.shape(), line.value());
  std::vector<SlabId> leaving;
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    const SlabRecord& record = slabs_[slab];
    if (record.owner != id) {
      holder->disown(slab);
      continue;
    }
    holder->resume(slab, record.generation, use_of(record.state));
    if (record.state == SlabState::kQuarantined) holder->quarantine_slab(slab);
    if (record.state == SlabState::kRevoking) leaving.push_back(slab);
  }
  holders_[static_cast<std::size_t>(id)] = std::move(holder);
  lines_.emplace(id, line.take());
  if (!leaving.empty()) {
    const auto count = static_cast<std::int32_t>(leaving.size());
    const RevocationId by = open_revocation(id, kNobody, clock_->now_ns() + grace_ns, count);
    revocations_.at(by).progress.pending = count;
    for (const SlabId slab : leaving) {
      revoked_by_[static_cast<std::size_t>(slab)] = by;
      ROSE_TRY(holder_of(id)->close_slab(slab));
    }
  }
  return sweep_locked(id).status();
}

Status Arbiter::revoke_claims(std::span<const SlabId> claimed, Nanoseconds grace_ns) noexcept {
  for (const PartitionRecord& one : shown_) {
    victims_.clear();
    for (const SlabId slab : claimed) {
      const bool is_lent =
          slabs_[slab].state == SlabState::kGranted;  // a sweep may have been first
      if (is_lent && slabs_[slab].owner == one.partition.id) victims_.push_back(slab);
    }
    if (victims_.empty()) continue;
    ROSE_TRY(revoke_victims(open_revocation(one.partition.id, kNobody, clock_->now_ns() + grace_ns,
                                            static_cast<std::int32_t>(victims_.size()))));
  }
  return {};
}

}  // namespace rose::memory
