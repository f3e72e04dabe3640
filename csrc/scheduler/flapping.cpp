#include "scheduler/flapping.h"

#include <algorithm>

namespace rose::scheduler {

namespace {

// After this many doublings every hold has reached its maximum.
constexpr std::int64_t kDoublingsMax = 40;

}  // namespace

void FlapTable::revoke(WorkerId worker, Nanoseconds now_ns) {
  Record& record = workers_[worker];
  const bool is_again = record.flaps > 0 && now_ns - record.revoked_ns <= flap_window_ns_;
  record.flaps = is_again ? record.flaps + 1 : 1;
  record.revoked_ns = now_ns;
}

Nanoseconds FlapTable::hold_until_ns(WorkerId worker, Nanoseconds now_ns) const noexcept {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return now_ns;
  const Record& record = found->second;
  if (record.flaps < 2 || now_ns - record.revoked_ns > flap_window_ns_) return now_ns;
  Nanoseconds hold_ns = std::min(hold_min_ns_, hold_max_ns_);
  const std::int64_t doublings = std::min(record.flaps - 2, kDoublingsMax);
  for (std::int64_t i = 0; i < doublings; ++i) hold_ns = std::min(2 * hold_ns, hold_max_ns_);
  return now_ns + hold_ns;
}

}  // namespace rose::scheduler
