// Partitions, own memory and grants. revocation.cpp takes slabs back, audit.cpp recounts them.
#include "memory/arbiter.h"

#include <algorithm>
#include <string>
#include <utility>

namespace rose::memory {

namespace {

// Limit of durations: longer than a century, but a sum with the time of a clock does not overflow.
constexpr Nanoseconds kDurationMax = Nanoseconds{1} << 62;

std::string in_bytes(std::int64_t slabs, std::size_t slab_bytes) {
  return std::to_string(slabs) + " slabs (" +
         std::to_string(static_cast<std::uint64_t>(slabs) * slab_bytes) + " bytes)";
}

}  // namespace

Status Arbiter::check_duration(const char* name, Nanoseconds value, Nanoseconds least) noexcept {
  if (value >= least && value < kDurationMax) return {};
  return Status::invalid_argument(std::string{name} + " must be at least " + std::to_string(least) +
                                  " and below 2^62, got " + std::to_string(value));
}

Result<std::unique_ptr<Arbiter>> Arbiter::create(Pool pool, std::shared_ptr<const Clock> clock,
                                                 std::shared_ptr<MoveObserver> observer) noexcept {
  Result<SlabTable> slabs = SlabTable::create(pool.shape());
  if (!slabs.ok()) return slabs.status();
  return std::unique_ptr<Arbiter>{
      new Arbiter{std::move(pool), slabs.take(), std::move(clock), std::move(observer)}};
}

Arbiter::Arbiter(Pool pool, SlabTable slabs, std::shared_ptr<const Clock> clock,
                 std::shared_ptr<MoveObserver> observer) noexcept
    : pool_{std::move(pool)},
      clock_{std::move(clock)},
      observer_{std::move(observer)},
      slabs_{std::move(slabs)} {
  const auto count = static_cast<std::size_t>(slabs_.size());
  revoked_by_.resize(count, 0);
  scrubs_.resize(count, Scrub::kNone);
  victims_.reserve(count);
  busy_.reserve(count);
  shown_.reserve(kPartitionsMax);
}

Result<FileDescriptor> Arbiter::share_ledger() const noexcept { return slabs_.ledger().share(); }

// ---- partitions

Result<PartitionId> Arbiter::add_partition(std::string name, std::int32_t reserve_slabs,
                                           std::int32_t limit_slabs) noexcept {
  if (reserve_slabs < 0 || limit_slabs < reserve_slabs) {
    return Status::invalid_argument("reserve of " + std::to_string(reserve_slabs) +
                                    " slabs and limit of " + std::to_string(limit_slabs) +
                                    ": they must satisfy 0 <= reserve <= limit");
  }
  const Transaction transaction{*this};
  std::int64_t reserved = reserve_slabs;
  for (const Partition& other : partitions_) reserved += other.is_live ? other.reserve_slabs : 0;
  const std::size_t slab_bytes = pool_.shape().slab_bytes;
  if (reserved > slabs_.size()) {
    return Status::invalid_argument("total reserve of " + in_bytes(reserved, slab_bytes) +
                                    " exceeds the pool of " + in_bytes(slabs_.size(), slab_bytes) +
                                    ": lower reserve_bytes or raise pool_bytes");
  }
  PartitionRecord* place = free_place();
  if (place == nullptr) {
    return Status::unavailable("partition '" + name + "' cannot be added: at most " +
                               std::to_string(kPartitionsMax) +
                               " partitions can exist at a time: drop one first");
  }
  const auto id = static_cast<PartitionId>(partitions_.size());
  if (reserve_slabs > spare_for(id)) {
    return Status::unavailable("reserve of " + in_bytes(reserve_slabs, slab_bytes) + " for '" +
                               name + "': only " + in_bytes(spare_for(id), slab_bytes) +
                               " are neither lent nor reserved now: revoke loans first");
  }
  partitions_.push_back({id, std::move(name), reserve_slabs, limit_slabs});
  holders_.emplace_back();
  accounts_.emplace_back();
  *place = {partitions_.back(), 0, 0, 0, {}, {}};
  has_changed_ = true;
  return id;
}

Result<BlockAllocator*> Arbiter::add_allocator(PartitionId id, BlockGeometry geometry) noexcept {
  Result<BlockGrid> grid = BlockGrid::create(pool_.shape(), geometry);
  if (!grid.ok()) return grid.status();
  const Transaction transaction{*this};
  ROSE_TRY(check_live(id));
  std::unique_ptr<SlabHolder>& place = holders_[static_cast<std::size_t>(id)];
  if (place != nullptr) {
    return Status::invalid_argument("partition '" + partition(id).name +
                                    "' has an allocator already");
  }
  std::unique_ptr<BlockAllocator> allocator{new BlockAllocator{grid.value(), books_, *this}};
  BlockAllocator* const made = allocator.get();
  place = std::move(allocator);
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    if (slabs_[slab].owner == id) place->add_slab(slab, slabs_[slab].generation);
  }
  return made;
}

Status Arbiter::check_known(PartitionId id) const noexcept {
  if (id >= 0 && static_cast<std::size_t>(id) < partitions_.size()) return {};
  return Status::invalid_argument("partition " + std::to_string(id) + " does not exist");
}

Status Arbiter::check_live(PartitionId id) const noexcept {
  ROSE_TRY(check_known(id));
  const Partition& one = partitions_[static_cast<std::size_t>(id)];
  if (!one.is_live) return Status::invalid_argument("partition '" + one.name + "' was dropped");
  return {};
}

// ---- own memory

Result<std::vector<SlabId>> Arbiter::take(PartitionId id, std::int32_t n) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_live(id));
  if (n < 0)
    return Status::invalid_argument("the number of slabs to take must be at least 0, got " +
                                    std::to_string(n));
  const std::int32_t count = std::min({n, partition(id).headroom(), spare_for(id)});
  std::vector<SlabId> taken;
  taken.reserve(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) {
    taken.push_back(slabs_.find_unowned(0));
    ROSE_TRY(hand_out(taken.back(), SlabState::kOwned, Hold{id}));
  }
  if (count > 0) announce({MoveKind::kTake, kNobody, id, count});
  return taken;
}

Result<std::int32_t> Arbiter::give_back(PartitionId id, std::int32_t n) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_live(id));
  if (n < 0)
    return Status::invalid_argument("the number of slabs to give back must be at least 0, got " +
                                    std::to_string(n));
  const std::int32_t above_reserve = partition(id).held - partition(id).reserve_slabs;
  std::int32_t given = 0;
  for (SlabId slab = slabs_.size() - 1; slab >= 0 && given < std::min(n, above_reserve); --slab) {
    const SlabRecord& record = slabs_[slab];
    if (record.owner != id || record.state != SlabState::kOwned) continue;
    if (holder_of(id) != nullptr && !holder_of(id)->take_idle(slab)) continue;
    ROSE_TRY(release_own(slab));
    ++given;
  }
  if (given > 0) announce({MoveKind::kGiveBack, id, kNobody, given});
  return given;
}

// ---- loans

std::uint64_t Arbiter::epoch() const noexcept {
  const std::lock_guard lock{books_};
  return epoch_;
}

Result<GrantAnswer> Arbiter::grant(PartitionId id, std::int32_t n, Nanoseconds ttl_ns,
                                   Admission* admission, std::int32_t held_max) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_live(id));
  ROSE_TRY(check_duration("ttl_ns", ttl_ns, 1));
  if (n < 1)
    return Status::invalid_argument("the number of slabs to grant must be at least 1, got " +
                                    std::to_string(n));
  n = std::min(n, held_max - partition(id).held - partition(id).quarantined);
  if (n < 1) return GrantAnswer{{}, GrantRefusal::kOverLimit};
  if (admission != nullptr) {
    const Result<std::int32_t> most = admitted(*admission, id, n);
    if (!most.ok()) return most.status();
    n = most.value();
    if (n == 0) return GrantAnswer{{}, GrantRefusal::kAtRisk};
  }
  if (n > partition(id).headroom()) return GrantAnswer{{}, GrantRefusal::kOverLimit};
  if (n > slabs_.unowned()) return GrantAnswer{{}, GrantRefusal::kPoolEmpty};
  if (n > spare_for(id)) return GrantAnswer{{}, GrantRefusal::kAtRisk};

  // The lease_epoch is the arbiter's epoch after this move, so no other lease has the same.
  Grant grant{next_lease_++, epoch_ + 1, {}};
  grant.slabs.reserve(static_cast<std::size_t>(n));
  for (std::int32_t i = 0; i < n; ++i) {
    grant.slabs.push_back(slabs_.find_unowned(0));
    ROSE_TRY(hand_out(grant.slabs.back(), SlabState::kGranted,
                      Hold{id, grant.lease_id, grant.lease_epoch}));
  }
  leases_.emplace(grant.lease_id, Lease{id, grant.lease_epoch, clock_->now_ns() + ttl_ns, n, 0});
  ++accounts_[static_cast<std::size_t>(id)].leases;
  announce({MoveKind::kGrant, kNobody, id, n, grant.lease_id});
  return GrantAnswer{std::move(grant), {}};
}

Result<bool> Arbiter::clean(PartitionId id, SlabId slab) noexcept {
  {
    const Transaction transaction{*this};
    ROSE_TRY(check_known(id));
    if (slab < 0 || slab >= slabs_.size()) {
      return Status::invalid_argument("slab " + std::to_string(slab) + " does not exist");
    }
    const SlabHolder* holder = holder_of(id);
    const bool is_lent = slabs_[slab].owner == id && slabs_[slab].state == SlabState::kGranted;
    if (!is_lent || holder == nullptr) return false;
    if (holder->was_notified(slab) || is_in_scrub(slab)) {
      return Status::invalid_argument("slab " + std::to_string(slab) +
                                      " cannot be zeroed: its tenant may be using it already, or "
                                      "another call zeros it");
    }
    scrub_of(slab) = Scrub::kRuns;
  }
  const Status done = pool_.scrub(slab);
  const Transaction transaction{*this};
  scrub_of(slab) = done.code() == Code::kDeadlineExceeded ? Scrub::kLate : Scrub::kNone;
  // If the slab was revoked or its tenant died during the scrub, that takes effect now.
  if (slabs_[slab].state != SlabState::kGranted) ROSE_TRY(on_slab_idle(slab));
  ROSE_TRY(done);
  if (slabs_[slab].owner != id || slabs_[slab].state != SlabState::kGranted) return false;
  holder_of(id)->notify(slab);
  return true;
}

Result<RenewAnswer> Arbiter::renew(LeaseId lease_id, std::uint64_t lease_epoch,
                                   Nanoseconds ttl_ns) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_duration("ttl_ns", ttl_ns, 1));
  const auto found = leases_.find(lease_id);
  if (found == leases_.end()) return RenewAnswer::kOver;
  Lease& lease = found->second;
  if (lease.lease_epoch != lease_epoch) return RenewAnswer::kStaleEpoch;
  const Nanoseconds now = clock_->now_ns();
  if (lease.is_fenced || lease.expires_ns <= now) return RenewAnswer::kOver;
  if (lease.granted == 0) return RenewAnswer::kRevoking;
  lease.expires_ns = now + ttl_ns;
  return RenewAnswer::kRenewed;
}

Result<std::vector<RevocationId>> Arbiter::expire(Nanoseconds grace_ns) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_duration("grace_ns", grace_ns, 0));
  const Nanoseconds now = clock_->now_ns();
  note_news();
  for (const PartitionRecord& one : shown_) {
    if (one.partition.id == kNobody) continue;
    const Result<std::int32_t> swept = sweep_locked(one.partition.id);
    if (!swept.ok()) return swept.status();
  }
  for (auto& [id, revocation] : revocations_) {
    if (revocation.progress.pending > 0 && revocation.deadline_ns <= now) ROSE_TRY(fence(id));
  }
  std::vector<LeaseId> overdue;
  for (const auto& [id, lease] : leases_) {
    if (lease.expires_ns <= now && lease.granted > 0) overdue.push_back(id);
  }
  std::vector<RevocationId> started;
  for (const LeaseId id : overdue) {
    const Lease lease = leases_.at(id);
    victims_.clear();
    for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
      const bool is_lent = slabs_[slab].state == SlabState::kGranted;
      if (is_lent && slabs_.lease_of(slab) == id) victims_.push_back(slab);
    }
    started.push_back(open_revocation(lease.partition, kNobody, now + grace_ns, lease.granted));
    ROSE_TRY(revoke_victims(started.back()));
  }
  return started;
}

// ---- parts of the moves

// Gives an unowned or just returned slab to a partition, which may use the slab from here on.
Status Arbiter::hand_out(SlabId slab, SlabState to, const Hold& hold) noexcept {
  ROSE_TRY(slabs_.move(slab, to, hold));
  ++partition(hold.owner).held;
  SlabHolder* holder = holder_of(hold.owner);
  if (holder != nullptr) holder->add_slab(slab, slabs_[slab].generation);
  return {};
}

// Makes a partition's own slab unowned, after the holder has released the slab.
Status Arbiter::release_own(SlabId slab) noexcept {
  --partition(slabs_[slab].owner).held;
  ROSE_TRY(slabs_.move(slab, SlabState::kReturned));
  return slabs_.move(slab, SlabState::kUnowned);
}

void Arbiter::announce(Move move) noexcept {
  move.epoch = ++epoch_;
  if (observer_ != nullptr) observer_->on_move(move);
}

bool Arbiter::is_idle(SlabId slab) const noexcept {
  if (is_in_scrub(slab)) return false;
  const SlabHolder* holder = holder_of(slabs_[slab].owner);
  return holder == nullptr || holder->load(slab).is_idle();
}

Candidate Arbiter::candidate(SlabId slab) const noexcept {
  const SlabHolder* holder = holder_of(slabs_[slab].owner);
  const SlabLoad load = holder == nullptr ? SlabLoad{} : holder->load(slab);
  return {slab, load.used, load.pins + (is_in_scrub(slab) ? 1 : 0)};
}

// ---- the published state

// Returns a free record of the ledger for a new partition; null if all are used. A partition keeps
// its record until it is dropped and has no slabs left. So as long as a partition has slabs, even a
// torn read never shows the partition's numbers under the id of another partition.
PartitionRecord* Arbiter::free_place() noexcept {
  for (PartitionRecord& one : shown_) {
    if (one.partition.id == kNobody) return &one;
  }
  return shown_.size() < kPartitionsMax ? &shown_.emplace_back() : nullptr;
}

// Returns the earliest deadline of a partition's open revocations; 0 without any.
Nanoseconds Arbiter::due_ns(PartitionId id) const noexcept {
  Nanoseconds due = 0;
  for (const RevocationId at : under_way_) {
    const Revocation& one = revocations_.at(at);
    if (one.partition == id && (due == 0 || one.deadline_ns < due)) due = one.deadline_ns;
  }
  return due;
}

// Sets has_news_ if blocks or pins have changed since the ledger was last published.
void Arbiter::note_news() noexcept {
  for (const PartitionRecord& one : shown_) {
    const PartitionId id = one.partition.id;
    if (id == kNobody || holder_of(id) == nullptr) continue;
    const BlockTotals totals = holder_of(id)->totals();
    has_news_ |= totals.free != one.free_blocks || totals.used != one.used_blocks ||
                 holder_of(id)->pin_totals() != one.pins;
  }
}

// Publishes the ledger before the bells ring, so that woken tenants read the new state.
void Arbiter::show() noexcept {
  const bool has_moved = slabs_.has_changed() || has_changed_;
  if (!has_moved && !std::exchange(has_news_, false)) return;
  has_changed_ = has_news_ = false;
  if (has_moved) changed_ns_ = clock_->now_ns();
  std::erase_if(under_way_, [&](RevocationId id) {
    const auto found = revocations_.find(id);
    return found == revocations_.end() || found->second.progress.pending == 0;
  });
  for (PartitionRecord& one : shown_) {
    const PartitionId id = one.partition.id;
    if (id == kNobody) continue;
    const Account& account = accounts_[static_cast<std::size_t>(id)];
    const Partition& now = partition(id);
    if (!now.is_live && now.held == 0 && now.quarantined == 0) {
      if (holder_of(id) != nullptr) holder_of(id)->settle();
      one = {};  // frees its record
      continue;
    }
    one.partition = now;
    one.leases = account.leases;
    if (holder_of(id) != nullptr) {
      const BlockTotals totals = holder_of(id)->totals();
      one.free_blocks = totals.free;
      one.used_blocks = totals.used;
      one.pins = holder_of(id)->pin_totals();
    }
    const auto newest = revocations_.find(account.newest_revocation);
    if (newest == revocations_.end()) continue;
    const Revocation& revocation = newest->second;
    one.revocation = {newest->first, revocation.progress.wanted, revocation.progress.pending,
                      revocation.deadline_ns, due_ns(id)};
  }
  slabs_.publish(epoch_, shown_, changed_ns_);
  for (PartitionRecord& one : shown_) {
    if (one.partition.id == kNobody) continue;
    if (holder_of(one.partition.id) != nullptr) holder_of(one.partition.id)->settle();
  }
}

}  // namespace rose::memory
