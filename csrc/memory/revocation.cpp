// Takes loans back: revokes, hands over, fences and quarantines slabs, and proves completions.
#include <algorithm>
#include <string>
#include <utility>

#include "base/futex.h"
#include "memory/arbiter.h"

namespace rose::memory {

namespace {

// Shortest sleep of wait(): it must not spin when a deadline is reached but the clock stands still.
constexpr Nanoseconds kNapMin = 20'000;
// Longest sleep of wait(), and of one listen() by the keeper, a Python thread. If the keeper does
// not get the interpreter, only the transactions of wait() show that this process still runs.
constexpr Nanoseconds kNapMax = 20'000'000;
// Shortest gap between transactions that counts as a standstill. The keeper listens for 20 ms at a
// time, and a busy machine delays the keeper by tens of milliseconds.
constexpr Nanoseconds kStandstillNs = 100'000'000;

}  // namespace

// ---- choosing

Result<std::vector<Candidate>> Arbiter::candidates(PartitionId id) const noexcept {
  const std::lock_guard lock{books_};
  ROSE_TRY(check_live(id));
  std::vector<Candidate> found;
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    const SlabRecord& record = slabs_[slab];
    if (record.owner == id && record.state == SlabState::kGranted) found.push_back(candidate(slab));
  }
  return found;
}

// Puts up to n lent slabs of `from` into victims_, in the order promised by revoke().
void Arbiter::choose_victims(PartitionId from, std::int32_t n) noexcept {
  victims_.clear();
  busy_.clear();
  const auto most = static_cast<std::size_t>(n);
  for (SlabId slab = 0; slab < slabs_.size() && victims_.size() < most; ++slab) {
    const SlabRecord& record = slabs_[slab];
    if (record.owner != from || record.state != SlabState::kGranted) continue;
    if (is_idle(slab)) {
      victims_.push_back(slab);
    } else {
      const SlabLoad load = holder_of(from)->load(slab);
      busy_.push_back({load.rank, load.used, slab});
    }
  }
  std::ranges::sort(busy_);
  for (const Busy& one : busy_) {
    if (victims_.size() == most) break;
    victims_.push_back(one.slab);
  }
}

// ---- revoking

Result<RevocationId> Arbiter::revoke(PartitionId from, std::int32_t n, Nanoseconds deadline_ns,
                                     PartitionId taker) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_known(from));  // not check_live(): a dropped partition has no lent slabs to revoke
  if (taker != kNobody) ROSE_TRY(check_live(taker));
  if (taker == from) {
    return Status::invalid_argument("slabs of partition " + std::to_string(from) +
                                    " must be revoked for another partition, got the same");
  }
  if (n < 1)
    return Status::invalid_argument("the number of slabs to revoke must be at least 1, got " +
                                    std::to_string(n));
  choose_victims(from, n);
  const RevocationId id = open_revocation(from, taker, deadline_ns, n);
  ROSE_TRY(revoke_victims(id));
  return id;
}

RevocationId Arbiter::open_revocation(PartitionId from, PartitionId taker, Nanoseconds deadline_ns,
                                      std::int32_t wanted) noexcept {
  forget_revocations();
  const RevocationId id = next_revocation_++;
  revocations_.emplace(id, Revocation{from, taker, deadline_ns, {wanted}});
  accounts_[static_cast<std::size_t>(from)].newest_revocation = id;
  has_changed_ = true;
  return id;
}

Status Arbiter::revoke_victims(RevocationId id) noexcept {
  Revocation& revocation = revocations_.at(id);
  SlabHolder* holder = holder_of(revocation.partition);
  Homecoming home;
  for (const SlabId slab : victims_) {
    ROSE_TRY(slabs_.move(slab, SlabState::kRevoking));
    ++revocation.progress.pending;
    Lease& lease = lease_for(slab, home);
    --lease.granted;
    ++lease.revoking;
    bool is_home = !is_in_scrub(slab) && (holder == nullptr || holder->take_idle(slab));
    if (!is_home) {
      ROSE_TRY(holder->close_slab(slab));
      is_home = is_idle(slab);
      if (is_home) holder->remove_slab(slab);
    }
    if (is_home) {
      ROSE_TRY(bring_home(slab, revocation, home));
    } else {
      revoked_by_[static_cast<std::size_t>(slab)] = id;
    }
  }
  if (revocation.progress.pending > 0) under_way_.push_back(id);
  end(home);
  return {};
}

Status Arbiter::on_slab_idle(SlabId slab) noexcept {
  if (is_in_scrub(slab)) return {};  // clean() calls this again after the scrub
  const SlabState state = slabs_[slab].state;
  Status done;
  if (state == SlabState::kRevoking) done = bring_home(slab);
  if (state == SlabState::kQuarantined) done = release_quarantined(slab);
  show();
  return done;
}

// Returns a REVOKING slab that has no block in use and no pin.
Status Arbiter::bring_home(SlabId slab) noexcept {
  const RevocationId id = std::exchange(revoked_by_[static_cast<std::size_t>(slab)], 0);
  Revocation& revocation = revocations_.at(id);
  SlabHolder* holder = holder_of(revocation.partition);
  if (holder != nullptr) holder->remove_slab(slab);
  Homecoming home;
  ROSE_TRY(bring_home(slab, revocation, home));
  end(home);
  return {};
}

// The same, after the holder has released the slab.
Status Arbiter::bring_home(SlabId slab, Revocation& revocation, Homecoming& home) noexcept {
  const PartitionId from = revocation.partition;
  Lease& lease = lease_for(slab, home);
  ROSE_TRY(slabs_.move(slab, SlabState::kQuiesced));
  ROSE_TRY(slabs_.move(slab, SlabState::kReturned));
  --partition(from).held;
  --lease.revoking;
  --revocation.progress.pending;
  ++revocation.progress.returned;
  const PartitionId to = goes_to(revocation.taker) ? revocation.taker : kNobody;
  if (to != home.to) announce(home);
  if (to == kNobody) {
    ROSE_TRY(slabs_.move(slab, SlabState::kUnowned));
  } else {
    ROSE_TRY(hand_out(slab, SlabState::kOwned, Hold{to}));
  }
  home.from = from;
  home.to = to;
  ++home.slabs;
  return {};
}

// Returns true if the taker may get a RETURNED slab, which does not count as unowned yet. False if
// another partition's reserve needs that slab.
bool Arbiter::goes_to(PartitionId taker) const noexcept {
  return taker != kNobody && partitions_[static_cast<std::size_t>(taker)].headroom() > 0 &&
         memory::spare_for(partitions_, taker, slabs_.unowned() + 1) > 0;
}

// Returns the slab's lease. Before that, reports returned slabs of another lease to the observer.
Arbiter::Lease& Arbiter::lease_for(SlabId slab, Homecoming& home) noexcept {
  const LeaseId id = slabs_.lease_of(slab);
  if (id != home.lease_id || home.lease == nullptr) {
    end(home);
    home = {id, &leases_.at(id), kNobody, kNobody, 0};
  }
  return *home.lease;
}

void Arbiter::announce(Homecoming& home) noexcept {
  if (home.slabs == 0) return;
  announce({MoveKind::kReturn, home.from, home.to, std::exchange(home.slabs, 0), home.lease_id});
  wake();
}

void Arbiter::end(Homecoming& home) noexcept {
  announce(home);
  if (home.lease != nullptr) erase_if_over(home.lease_id, *std::exchange(home.lease, nullptr));
}

void Arbiter::wake() noexcept {
  changes_.fetch_add(1);
  if (waiters_ > 0) futex_wake_all(changes_);
}

void Arbiter::erase_if_over(LeaseId id, const Lease& lease) noexcept {
  if (lease.granted > 0 || lease.revoking > 0) return;
  --accounts_[static_cast<std::size_t>(lease.partition)].leases;
  leases_.erase(id);
}

// ---- waiting

Result<RevocationProgress> Arbiter::poll(RevocationId revocation) noexcept {
  const Transaction transaction{*this};
  return poll_locked(revocation);
}

Result<RevocationProgress> Arbiter::poll_locked(RevocationId id) noexcept {
  const auto found = revocations_.find(id);
  if (found == revocations_.end()) {
    return Status::invalid_argument("revocation " + std::to_string(id) +
                                    " does not exist, or was completed and forgotten");
  }
  const Revocation& revocation = found->second;
  if (revocation.progress.pending > 0) {
    const Result<std::int32_t> swept = sweep_locked(revocation.partition);
    if (!swept.ok()) return swept.status();
  }
  if (revocation.progress.pending > 0 && revocation.deadline_ns <= clock_->now_ns()) {
    ROSE_TRY(fence(id));
  }
  return revocation.progress;
}

Result<RevocationProgress> Arbiter::wait(RevocationId revocation, Nanoseconds timeout_ns) noexcept {
  const BootClock real;
  const Nanoseconds end_ns = real.now_ns() + std::min(timeout_ns, kTimeoutMax);
  bool is_waiter = false;
  while (true) {
    std::uint32_t seen = 0;
    Nanoseconds nap_ns = 0;
    {
      const Transaction transaction{*this};
      if (std::exchange(is_waiter, false)) --waiters_;
      seen = changes_.load();
      const Result<RevocationProgress> progress = poll_locked(revocation);
      const Nanoseconds left_ns = end_ns - real.now_ns();
      if (!progress.ok() || progress.value().pending == 0 || left_ns <= 0) return progress;
      const Nanoseconds deadline_ns = revocations_.at(revocation).deadline_ns;
      nap_ns = std::min(left_ns, std::clamp(deadline_ns - clock_->now_ns(), kNapMin, kNapMax));
      ++waiters_;
      is_waiter = true;
    }
    futex_wait(changes_, seen, nap_ns);
  }
}

// clock_ may be virtual. The gap is the smaller of the elapsed times on clock_ and in real time.
void Arbiter::note_standstill() noexcept {
  const Nanoseconds now_ns = clock_->now_ns();
  const Nanoseconds real_ns = real_now_ns();
  const Nanoseconds since_ns = std::min(now_ns - turn_ns_, real_ns - turn_real_ns_);
  turn_ns_ = now_ns;
  turn_real_ns_ = real_ns;
  if (!is_listened_to_ || since_ns < kStandstillNs) return;
  const auto later = [since_ns](Nanoseconds at) {
    return at < kTimeoutMax ? at + since_ns : at;  // a larger value means: no deadline
  };
  for (auto& [id, revocation] : revocations_)
    revocation.deadline_ns = later(revocation.deadline_ns);
  for (auto& [id, lease] : leases_) lease.expires_ns = later(lease.expires_ns);
  has_changed_ = true;
}

void Arbiter::forget_revocations() noexcept {
  for (auto at = revocations_.begin();
       at != revocations_.end() && revocations_.size() >= kRevocationsKept;) {
    at = at->second.progress.pending > 0 ? std::next(at) : revocations_.erase(at);
  }
}

// ---- slabs past their deadline

Status Arbiter::fence(RevocationId id) noexcept {
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    if (revoked_by_[static_cast<std::size_t>(slab)] != id) continue;
    // A tenant in another process may have left the slab at the last moment.
    ROSE_TRY(is_idle(slab) ? bring_home(slab) : quarantine(slab));
  }
  return {};
}

// Moves a held slab that is not idle to QUARANTINED, by way of FENCED. Nobody may use it then.
Status Arbiter::quarantine(SlabId slab) noexcept {
  const PartitionId from = slabs_[slab].owner;
  const LeaseId lease_id = slabs_.lease_of(slab);
  const RevocationId id = std::exchange(revoked_by_[static_cast<std::size_t>(slab)], 0);
  ROSE_TRY(slabs_.move(slab, SlabState::kFenced));
  ROSE_TRY(slabs_.move(slab, SlabState::kQuarantined));
  --partition(from).held;
  ++partition(from).quarantined;
  if (holder_of(from) != nullptr) holder_of(from)->quarantine_slab(slab);
  if (id != 0) {
    Lease& lease = leases_.at(lease_id);
    lease.is_fenced = true;
    --lease.revoking;
    erase_if_over(lease_id, lease);
    --revocations_.at(id).progress.pending;
    ++revocations_.at(id).progress.fenced;
  }
  announce({MoveKind::kQuarantine, from, kInQuarantine, 1, lease_id});
  wake();
  return {};
}

Status Arbiter::release_quarantined(SlabId slab) noexcept {
  const PartitionId from = slabs_[slab].owner;
  if (holder_of(from) != nullptr) holder_of(from)->remove_slab(slab);
  ROSE_TRY(slabs_.move(slab, SlabState::kReturned));
  ROSE_TRY(slabs_.move(slab, SlabState::kUnowned));
  --partition(from).quarantined;
  announce({MoveKind::kProve, kInQuarantine, kNobody, 1});
  return {};
}

Result<std::int32_t> Arbiter::prove_completion(PartitionId id) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_known(id));
  std::int32_t released = 0;
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    const SlabRecord& record = slabs_[slab];
    if (record.owner != id || record.state != SlabState::kQuarantined) continue;
    if (scrub_of(slab) == Scrub::kRuns) continue;  // rose itself still scrubs it
    scrub_of(slab) = Scrub::kNone;
    ROSE_TRY(release_quarantined(slab));
    ++released;
  }
  return released;
}

Status Arbiter::drop_partition(PartitionId id) noexcept {
  const Transaction transaction{*this};
  ROSE_TRY(check_known(id));
  return drop_locked(id);
}

// Revokes all lent slabs, with a deadline of now, and takes the partition's own slabs, which have
// no lease. Slabs that are not idle go into quarantine.
Status Arbiter::drop_locked(PartitionId id) noexcept {
  if (!partition(id).is_live) return {};
  choose_victims(id, slabs_.size());
  if (!victims_.empty()) {
    ROSE_TRY(revoke_victims(open_revocation(id, kNobody, clock_->now_ns(),
                                            static_cast<std::int32_t>(victims_.size()))));
  }
  SlabHolder* holder = holder_of(id);
  std::int32_t given = 0;
  for (SlabId slab = 0; slab < slabs_.size(); ++slab) {
    if (slabs_[slab].owner != id || !is_held(slabs_[slab].state)) continue;
    const bool is_own = slabs_[slab].state == SlabState::kOwned;
    if (is_own && holder != nullptr) ROSE_TRY(holder->close_slab(slab));
    if (!is_idle(slab)) {
      ROSE_TRY(quarantine(slab));
      continue;
    }
    if (!is_own) {
      ROSE_TRY(bring_home(slab));
      continue;
    }
    if (holder != nullptr) holder->remove_slab(slab);
    ROSE_TRY(release_own(slab));
    ++given;
  }
  partition(id).is_live = false;
  has_changed_ = true;
  if (given > 0) announce({MoveKind::kGiveBack, id, kNobody, given});
  return {};
}

}  // namespace rose::memory
