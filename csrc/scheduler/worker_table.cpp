#include "scheduler/worker_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rose::scheduler {

namespace {

// Factor on the learning rate for the error that all workers have in common. It is below 1, because
// more turns report this error.
constexpr double kMeanPaceRate = 0.25;
constexpr double kSlownessMin = 0.25;
constexpr double kSlownessMax = 16;
// Longer grants do not expire: the deadline stays far from the end of 64 bits.
constexpr double kTtlMaxMs = 1e12;
// A sum of such speeds fits 64 bits.
constexpr double kPrefillMaxPerS = 1e12;

}  // namespace

std::optional<std::size_t> WorkerTable::find(WorkerId number) const noexcept {
  const auto found = slots_.find(number);
  return found == slots_.end() ? std::nullopt : std::optional{found->second};
}

bool WorkerTable::is_new_epoch(std::size_t slot, std::int64_t epoch) const noexcept {
  const auto found = last_epochs_.find(workers_[slot].number);
  return found == last_epochs_.end() || epoch > found->second;
}

void WorkerTable::join(const WorkerJoined& event, std::size_t job, std::size_t domain) {
  const std::size_t slot = take_slot();
  Worker& worker = workers_[slot];
  worker.number = event.worker;
  worker.kind = event.kind;
  worker.domain = domain;
  worker.job = job;
  worker.device = event.device;
  worker.seats = event.seats;
  worker.version = event.version;
  columns_.number[slot] = event.worker;
  columns_.kind[slot] = event.kind;
  columns_.job[slot] = job;
  columns_.domain[slot] = domain;
  columns_.is_barred[slot] = 0;
  columns_.step_s_per_context_token[slot] = event.decode_ms_per_context_token / kMsPerS;
  columns_.commit_s[slot] = 0;
  columns_.hazard_per_s[slot] = event.kind == WorkerKind::kBorrowed ? hazard_per_s_ : 0;
  measure(slot, {event.worker, event.prefill_tokens_per_s, event.decode_step_ms,
                 event.decode_ms_per_sequence});
  slots_[event.worker] = slot;
  settle(slot);
  refresh(slot);
}

void WorkerTable::measure(std::size_t slot, const WorkerMeasured& event) noexcept {
  workers_[slot].prefill_tokens_per_s =
      std::llround(std::clamp(event.prefill_tokens_per_s, 1.0, kPrefillMaxPerS));
  workers_[slot].pace = {};
  columns_.prefill_s_per_token[slot] = 1 / event.prefill_tokens_per_s;
  columns_.step_s[slot] = event.decode_step_ms / kMsPerS;
  columns_.step_s_per_sequence[slot] = event.decode_ms_per_sequence / kMsPerS;
  columns_.slowness[slot] = 1;
  note_change(slot);
}

void WorkerTable::leave(std::size_t slot) noexcept {
  set_free_seats(slot, 0);
  const Worker left = std::exchange(workers_[slot], Worker{});
  slots_.erase(left.number);
  free_slots_.push_back(slot);
  workers_[slot].peers = {slot};
  refresh(slot);
  if (left.device == kOwnDevice) return;
  std::vector<std::size_t>& sharers = devices_[left.device];
  std::erase(sharers, slot);
  for (const std::size_t peer : sharers) workers_[peer].peers = sharers;
  if (sharers.empty()) {
    devices_.erase(left.device);
  } else {
    refresh(sharers.front());
  }
}

void WorkerTable::settle(std::size_t slot) {
  workers_[slot].peers = {slot};
  if (workers_[slot].device == kOwnDevice) return;
  std::vector<std::size_t>& sharers = devices_[workers_[slot].device];
  sharers.push_back(slot);
  for (const std::size_t peer : sharers) workers_[peer].peers = sharers;
}

Share WorkerTable::share(std::size_t slot) const noexcept {
  Share share;
  bool is_lent = false;
  for (const std::size_t peer : workers_[slot].peers) {
    const Worker& worker = workers_[peer];
    if (!worker.grant.is_live) continue;  // it has no turns either
    share.kv_tokens =
        is_lent ? std::min(share.kv_tokens, worker.grant.kv_tokens) : worker.grant.kv_tokens;
    share.seats = is_lent ? std::min(share.seats, worker.seats) : worker.seats;
    is_lent = true;
    share.used_tokens += worker.used_tokens;
    share.backlog_tokens += worker.backlog_tokens;
    share.restart_tokens += worker.restart_tokens;
    share.turns += static_cast<std::int64_t>(worker.held.size());
  }
  return share;
}

double WorkerTable::lent_tokens(std::size_t job) const noexcept {
  double tokens = 0;
  for (const Worker& worker : workers_) {
    if (worker.job != job || !worker.grant.is_live) continue;
    const auto sharers = std::count_if(worker.peers.begin(), worker.peers.end(),
                                       [&](auto peer) { return workers_[peer].grant.is_live; });
    tokens += static_cast<double>(worker.grant.kv_tokens) / static_cast<double>(sharers);
  }
  return tokens;
}

bool WorkerTable::has_turns(std::size_t job) const noexcept {
  return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.job == job && !worker.held.empty();
  });
}

void WorkerTable::hold_off(std::size_t slot, Nanoseconds until_ns, Nanoseconds now_ns) noexcept {
  Worker& worker = workers_[slot];
  worker.is_held_off = until_ns > now_ns;
  worker.held_off_until_ns = until_ns;
  if (worker.is_held_off) next_held_off_ns_ = std::min(next_held_off_ns_, until_ns);
  refresh(slot);
}

bool WorkerTable::take_back(Nanoseconds now_ns) noexcept {
  if (now_ns < next_held_off_ns_) return false;
  bool has_any = false;
  next_held_off_ns_ = kNever;
  for (std::size_t slot = 0; slot < workers_.size(); ++slot) {
    Worker& worker = workers_[slot];
    if (!worker.is_held_off) continue;
    if (worker.held_off_until_ns > now_ns) {
      next_held_off_ns_ = std::min(next_held_off_ns_, worker.held_off_until_ns);
      continue;
    }
    worker.is_held_off = false;
    has_any = true;
    refresh(slot);
  }
  return has_any;
}

void WorkerTable::hide(std::size_t slot) noexcept {
  for (const std::size_t peer : workers_[slot].peers) {
    columns_.room_tokens[peer] = -1;
    columns_.spare_tokens[peer] = -1;
    note_change(peer);
  }
}

void WorkerTable::set_grant(std::size_t slot, const GrantChanged& event,
                            Nanoseconds now_ns) noexcept {
  CapacityGrant& grant = workers_[slot].grant;
  const bool has_ttl = event.ttl_ms > 0 && event.ttl_ms < kTtlMaxMs;
  grant.epoch = event.grant_epoch;
  grant.kv_tokens = event.kv_tokens;
  grant.deadline_ns = has_ttl ? now_ns + static_cast<Nanoseconds>(event.ttl_ms * kNsPerMs) : kNever;
  grant.is_live = true;
  last_epochs_[workers_[slot].number] = event.grant_epoch;
  next_deadline_ns_ = std::min(next_deadline_ns_, grant.deadline_ns);
  refresh(slot);
}

std::vector<TrajectoryId> WorkerTable::end_grant(std::size_t slot) noexcept {
  Worker& worker = workers_[slot];
  worker.grant.is_live = false;
  worker.used_tokens = 0;
  worker.backlog_tokens = 0;
  worker.restart_tokens = 0;
  worker.is_held_off = false;
  worker.caches.clear();
  std::vector<TrajectoryId> held = std::exchange(worker.held, {});
  refresh(slot);
  return held;
}

void WorkerTable::set_version(std::size_t slot, std::int64_t version) noexcept {
  Worker& worker = workers_[slot];
  if (worker.version != version) worker.caches.clear();  // their KV was computed with other weights
  worker.version = version;
  refresh(slot);
}

void WorkerTable::keep_grants(Nanoseconds until_ns) noexcept {
  for (Worker& worker : workers_) {
    worker.grant.deadline_ns = std::max(worker.grant.deadline_ns, until_ns);
  }
}

std::vector<std::size_t> WorkerTable::expired(Nanoseconds now_ns) {
  std::vector<std::size_t> found;
  if (now_ns < next_deadline_ns_) return found;
  next_deadline_ns_ = kNever;
  for (std::size_t slot = 0; slot < workers_.size(); ++slot) {
    const CapacityGrant& grant = workers_[slot].grant;
    if (!grant.is_live) continue;
    if (grant.deadline_ns <= now_ns) {
      found.push_back(slot);
    } else {
      next_deadline_ns_ = std::min(next_deadline_ns_, grant.deadline_ns);
    }
  }
  return found;
}

void WorkerTable::hold(std::size_t slot, TrajectoryId trajectory, std::int64_t tokens,
                       std::int64_t prefill_tokens, std::int64_t restart_tokens, CacheId uses) {
  Worker& worker = workers_[slot];
  worker.held.push_back(trajectory);
  worker.used_tokens += tokens;
  worker.backlog_tokens += prefill_tokens;
  worker.restart_tokens += restart_tokens;
  worker.caches.remove(uses);
  refresh(slot);
}

void WorkerTable::release(std::size_t slot, TrajectoryId trajectory, std::int64_t tokens) noexcept {
  Worker& worker = workers_[slot];
  const auto place = std::find(worker.held.begin(), worker.held.end(), trajectory);
  if (place == worker.held.end()) return;
  worker.held.erase(place);
  worker.used_tokens -= tokens;
  refresh(slot);
}

CacheId WorkerTable::keep(std::size_t slot, std::int64_t tokens) {
  const CacheId cache = workers_[slot].caches.put(tokens);
  refresh(slot);
  return cache;
}

void WorkerTable::remove_cache(std::size_t slot, CacheId cache) noexcept {
  workers_[slot].caches.remove(cache);
  refresh(slot);
}

void WorkerTable::compute(std::size_t slot, std::int64_t prefill_tokens,
                          std::int64_t restart_tokens) noexcept {
  workers_[slot].backlog_tokens -= prefill_tokens;
  workers_[slot].restart_tokens -= restart_tokens;
  refresh(slot);
}

void WorkerTable::grow(std::size_t slot, std::int64_t tokens) noexcept {
  workers_[slot].used_tokens += tokens;
  refresh(slot);
}

void WorkerTable::observe_pace(std::size_t slot, double took_s, double foreseen_s,
                               double rate) noexcept {
  Worker& worker = workers_[slot];
  worker.pace.observe(took_s, foreseen_s, rate);
  // An error common to all workers (batches shrink while turns run) says nothing about this one, so
  // it is divided out.
  mean_pace_.observe(took_s, foreseen_s, rate * kMeanPaceRate);
  columns_.slowness[slot] =
      std::clamp(worker.pace.ratio() / mean_pace_.ratio(), kSlownessMin, kSlownessMax);
  note_change(slot);
}

bool WorkerTable::is_in_bounds(std::size_t jobs, std::size_t domains) {
  const auto are_slots = [&](const std::vector<std::size_t>& slots) {
    return std::all_of(slots.begin(), slots.end(), [&](auto slot) { return slot < size(); });
  };
  return columns_.has_size(size()) && seats_left_.size() == size() && are_slots(free_slots_) &&
         std::all_of(slots_.begin(), slots_.end(),
                     [&](const auto& entry) { return entry.second < size(); }) &&
         std::all_of(devices_.begin(), devices_.end(),
                     [&](const auto& entry) { return are_slots(entry.second); }) &&
         std::all_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
           const bool is_free = worker.number == kNobody;
           return are_slots(worker.peers) &&
                  (is_free || (worker.job < jobs && worker.domain < domains));
         });
}

std::size_t WorkerTable::take_slot() {
  if (!free_slots_.empty()) {
    const std::size_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }
  const std::size_t slot = workers_.size();
  const std::size_t size = slot + 1;
  workers_.resize(size);
  seats_left_.resize(size);
  columns_.resize(size);
  return slot;
}

void WorkerTable::set_free_seats(std::size_t slot, std::int64_t seats) noexcept {
  const std::size_t job = workers_[slot].job;
  if (job >= free_seats_.size()) free_seats_.resize(job + 1);
  free_seats_[job] += seats - std::exchange(seats_left_[slot], seats);
}

void WorkerTable::note_change(std::size_t slot) noexcept {
  if (slot >= is_changed_.size()) is_changed_.resize(workers_.size());
  if (is_changed_[slot] != 0) return;
  is_changed_[slot] = 1;
  changed_.push_back(slot);
}

void WorkerTable::refresh(std::size_t slot) noexcept {
  const Share share = this->share(slot);
  const bool has_seat = share.turns < share.seats;
  const std::int64_t left = share.kv_tokens - share.used_tokens;
  std::int64_t cached = 0;
  std::int64_t residents = share.turns;
  for (const std::size_t peer : workers_[slot].peers) {
    Caches& caches = workers_[peer].caches;
    caches.shrink_to(left);
    cached += caches.tokens();
    residents += caches.count();
  }
  const auto room = static_cast<double>(left);
  // On a device that several workers share, it is unknown whose caches are evicted first. So there
  // all caches count as room.
  const bool is_shared = workers_[slot].peers.size() > 1;
  const auto spare = static_cast<double>(is_shared ? left : left - cached);
  for (const std::size_t peer : workers_[slot].peers) {
    const Worker& worker = workers_[peer];
    const bool can_start = has_seat && worker.grant.is_live && !worker.is_held_off;
    columns_.room_tokens[peer] = can_start ? room : -1;
    columns_.spare_tokens[peer] = can_start ? spare : -1;
    columns_.residents[peer] = static_cast<double>(residents);
    columns_.grant_tokens[peer] = static_cast<double>(share.kv_tokens);
    columns_.turns[peer] = static_cast<double>(share.turns);
    columns_.backlog_tokens[peer] = static_cast<double>(share.backlog_tokens);
    columns_.context_tokens[peer] = static_cast<double>(share.used_tokens);
    columns_.restart_tokens[peer] = static_cast<double>(share.restart_tokens);
    columns_.version[peer] = static_cast<double>(worker.version);
    set_free_seats(peer, can_start ? share.seats - share.turns : 0);
    note_change(peer);
  }
}

}  // namespace rose::scheduler
