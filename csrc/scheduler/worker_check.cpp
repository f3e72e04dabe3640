// Checks whether a table of workers can result from events, because an image may contain anything.
#include <algorithm>
#include <cmath>

#include "scheduler/bounds.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

namespace {

bool is_positive(double value) noexcept { return value > 0 && std::isfinite(value); }

bool is_grant(const CapacityGrant& grant) noexcept {
  return is_count(grant.epoch) && is_count(grant.kv_tokens) &&
         (grant.kv_tokens > 0 || !grant.is_live) &&
         (is_time(grant.deadline_ns) || grant.deadline_ns == kNever);
}

bool is_free(const Worker& worker) noexcept {
  return worker.job == 0 && worker.device == kOwnDevice && !worker.grant.is_live &&
         worker.held.empty() && worker.caches.count() == 0 && !worker.is_held_off;
}

}  // namespace

bool Pace::is_sound() const noexcept { return is_amount(took_s) && is_positive(foreseen_s); }

bool WorkerTable::is_sound(std::size_t jobs, std::size_t domains) {
  return are_records_sound(jobs, domains) && are_slots_sound() && mean_pace_.is_sound() &&
         are_columns_sound() && free_seats_.size() <= std::max<std::size_t>(jobs, 1);
}

bool WorkerTable::are_records_sound(std::size_t jobs, std::size_t domains) const {
  return std::all_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    if (worker.number == kNobody) return is_free(worker);
    const auto epoch = last_epochs_.find(worker.number);
    const bool is_last = epoch != last_epochs_.end() && epoch->second == worker.grant.epoch;
    const auto totals = {worker.used_tokens, worker.backlog_tokens, worker.restart_tokens,
                         worker.prefill_tokens_per_s};
    return is_count(worker.number) && worker.job < jobs && worker.domain < domains &&
           worker.device >= kOwnDevice && is_count(worker.seats) && is_count(worker.version) &&
           is_grant(worker.grant) && (is_last || !worker.grant.is_live) &&
           std::all_of(totals.begin(), totals.end(), is_total) && worker.prefill_tokens_per_s > 0 &&
           is_time(worker.held_off_until_ns) && worker.pace.is_sound() &&
           worker.caches.is_sound() && (worker.grant.is_live || worker.caches.count() == 0);
  });
}

bool WorkerTable::are_slots_sound() const {
  std::vector<bool> is_seen(workers_.size());
  for (const std::size_t slot : free_slots_) {
    if (slot >= workers_.size() || is_seen[slot] || workers_[slot].number != kNobody) return false;
    is_seen[slot] = true;
  }
  if (slots_.size() + free_slots_.size() != workers_.size()) return false;
  std::size_t shared = 0;
  for (std::size_t slot = 0; slot < workers_.size(); ++slot) {
    const Worker& worker = workers_[slot];
    if (worker.number != kNobody && find(worker.number) != slot) return false;
    if (worker.device == kOwnDevice) {
      if (worker.peers != std::vector{slot}) return false;
      continue;
    }
    ++shared;
    const auto sharers = devices_.find(worker.device);
    if (sharers == devices_.end() || sharers->second != worker.peers) return false;
    if (std::count(worker.peers.begin(), worker.peers.end(), slot) != 1) return false;
  }
  std::size_t named = 0;
  for (const auto& entry : devices_) {
    if (entry.second.empty()) return false;
    named += entry.second.size();
  }
  return named == shared;
}

bool WorkerTable::are_columns_sound() {
  if (!columns_.has_size(workers_.size()) || seats_left_.size() != workers_.size()) return false;
  std::vector<std::int64_t> free_seats(free_seats_.size());
  for (std::size_t slot = 0; slot < workers_.size(); ++slot) {
    const Worker& worker = workers_[slot];
    const bool is_same = columns_.number[slot] == worker.number &&
                         columns_.kind[slot] == worker.kind && columns_.job[slot] == worker.job &&
                         columns_.domain[slot] == worker.domain;
    const bool has_figures =
        is_positive(columns_.prefill_s_per_token[slot]) && is_positive(columns_.step_s[slot]) &&
        is_amount(columns_.step_s_per_sequence[slot]) && is_positive(columns_.slowness[slot]) &&
        is_amount(columns_.step_s_per_context_token[slot]) &&
        is_amount(columns_.hazard_per_s[slot]) && columns_.is_barred[slot] <= 1;
    if ((worker.number != kNobody && !is_same) || !has_figures) return false;
    if (seats_left_[slot] < 0 || seats_left_[slot] > worker.seats) return false;
    if (worker.job >= free_seats.size()) return false;
    free_seats[worker.job] += seats_left_[slot];
  }
  if (free_seats != free_seats_) return false;
  // Computes all derived values again from the records, and compares them.
  const WorkerColumns columns = columns_;
  const std::vector<std::int64_t> seats_left = seats_left_;
  for (std::size_t slot = 0; slot < workers_.size(); ++slot) refresh(slot);
  return columns == columns_ && seats_left == seats_left_;
}

}  // namespace rose::scheduler
