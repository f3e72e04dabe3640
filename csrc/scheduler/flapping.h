// Hold times for workers that flap: their grants are revoked again and again within a short time.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/clock.h"
#include "scheduler/events.h"
#include "scheduler/settings.h"

namespace rose::scheduler {

// Records are never removed, so a worker that rejoins keeps its record.
class FlapTable {
 public:
  explicit FlapTable(const Settings& settings) noexcept
      : hold_min_ns_{settings.hold_min_ns},
        hold_max_ns_{settings.hold_max_ns},
        flap_window_ns_{settings.flap_window_ns} {}

  // Serving has taken back all or part of the grant.
  void revoke(WorkerId worker, Nanoseconds now_ns);
  // Time before which a new grant gets no turns. The second revocation within the flap window sets
  // the minimum hold time; each further one doubles it, up to the maximum.
  Nanoseconds hold_until_ns(WorkerId worker, Nanoseconds now_ns) const noexcept;

  template <typename Image>
  void image(Image& image) {
    image(workers_);
  }

 private:
  struct Record {
    std::int64_t flaps{0};  // revocations, each within the flap window of the previous one
    Nanoseconds revoked_ns{0};

    template <typename Image>
    void image(Image& image) {
      image(flaps, revoked_ns);
    }
  };

  Nanoseconds hold_min_ns_;
  Nanoseconds hold_max_ns_;
  Nanoseconds flap_window_ns_;
  std::unordered_map<WorkerId, Record> workers_;  // never iterated
};

}  // namespace rose::scheduler
