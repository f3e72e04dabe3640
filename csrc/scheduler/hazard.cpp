#include "scheduler/hazard.h"

#include <algorithm>

namespace rose::scheduler {

namespace {

// After this many doublings every hold has reached its maximum.
constexpr std::int64_t kDoublingsMax = 40;

}  // namespace

void HazardTable::begin(WorkerId worker, std::size_t domain, Nanoseconds now_ns) {
  expose(worker, domain, now_ns);
  Record& record = workers_[worker];
  record.is_exposed = true;
  record.exposed_from_ns = now_ns;
}

void HazardTable::expose(WorkerId worker, std::size_t place, Nanoseconds now_ns) {
  Record& record = workers_[worker];
  if (!record.is_exposed) return;
  const double seconds = static_cast<double>(now_ns - record.exposed_from_ns) / kNsPerS;
  record.exposed_from_ns = now_ns;
  record.seen.expose(seconds, window_s_);
  domain(place).expose(seconds, window_s_);
}

void HazardTable::revoke(WorkerId worker, std::size_t place, Nanoseconds now_ns) {
  expose(worker, place, now_ns);
  Record& record = workers_[worker];
  ++record.seen.count;
  ++domain(place).count;
  const bool is_again = record.flaps > 0 && now_ns - record.revoked_ns <= flap_window_ns_;
  record.flaps = is_again ? record.flaps + 1 : 1;
  record.revoked_ns = now_ns;
}

void HazardTable::end(WorkerId worker) { workers_[worker].is_exposed = false; }

double HazardTable::domain_per_s(std::size_t place) const noexcept {
  return place < domains_.size() ? domains_[place].per_s(prior_per_s_, prior_s_) : prior_per_s_;
}

double HazardTable::per_s(WorkerId worker, std::size_t domain) const noexcept {
  const double prior_per_s = domain_per_s(domain);
  const auto found = workers_.find(worker);
  return found == workers_.end() ? prior_per_s : found->second.seen.per_s(prior_per_s, prior_s_);
}

Nanoseconds HazardTable::hold_until_ns(WorkerId worker, Nanoseconds now_ns) const noexcept {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return now_ns;
  const Record& record = found->second;
  if (record.flaps < 2 || now_ns - record.revoked_ns > flap_window_ns_) return now_ns;
  Nanoseconds hold_ns = std::min(hold_min_ns_, hold_max_ns_);
  const std::int64_t doublings = std::min(record.flaps - 2, kDoublingsMax);
  for (std::int64_t i = 0; i < doublings; ++i) hold_ns = std::min(2 * hold_ns, hold_max_ns_);
  return now_ns + hold_ns;
}

Revocations& HazardTable::domain(std::size_t place) {
  if (place >= domains_.size()) domains_.resize(place + 1);
  return domains_[place];
}

}  // namespace rose::scheduler
