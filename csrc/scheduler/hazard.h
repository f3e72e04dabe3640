// Revocation rates of grants, and hold times for workers that flap. A worker flaps if its grants
// are revoked again and again within a short time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "scheduler/events.h"
#include "scheduler/settings.h"

namespace rose::scheduler {

// Revocations within an exposure time: a Gamma-Poisson estimate with a memory. The prior rate (the
// rate assumed before any observation) has the weight of `prior_s` seconds of exposure.
// Observations older than `window_s` seconds of exposure fade.
struct Revocations {
  double count{0};
  double exposed_s{0};

  void expose(double seconds, double window_s) noexcept {
    exposed_s += seconds;
    if (exposed_s <= window_s) return;
    count *= window_s / exposed_s;
    exposed_s = window_s;
  }
  double per_s(double prior_per_s, double prior_s) const noexcept {
    return (prior_per_s * prior_s + count) / (prior_s + exposed_s);
  }

  template <typename Image>
  void image(Image& image) {
    image(count, exposed_s);
  }
};

// Hazards of borrowed workers. A worker's prior is its domain's estimate; a domain's prior comes
// from the settings. Records are never removed, so a worker that rejoins keeps its record.
class HazardTable {
 public:
  explicit HazardTable(const Settings& settings) noexcept
      : prior_per_s_{settings.hazard_per_s},
        prior_s_{settings.hazard_prior_s},
        window_s_{settings.hazard_window_s},
        hold_min_ns_{settings.hold_min_ns},
        hold_max_ns_{settings.hold_max_ns},
        flap_window_ns_{settings.flap_window_ns} {}

  // The worker has a live grant from now on.
  void begin(WorkerId worker, std::size_t domain, Nanoseconds now_ns);
  // Counts the exposure since the last call of begin(), expose() or revoke().
  void expose(WorkerId worker, std::size_t domain, Nanoseconds now_ns);
  // Serving has taken back all or part of the grant.
  void revoke(WorkerId worker, std::size_t domain, Nanoseconds now_ns);
  // The worker has no grant any more.
  void end(WorkerId worker);

  double per_s(WorkerId worker, std::size_t domain) const noexcept;
  double domain_per_s(std::size_t domain) const noexcept;
  // Time before which a new grant gets no turns. The second revocation within the flap window sets
  // the minimum hold time; each further one doubles it, up to the maximum.
  Nanoseconds hold_until_ns(WorkerId worker, Nanoseconds now_ns) const noexcept;

  template <typename Image>
  void image(Image& image) {
    image(workers_, domains_);
  }

 private:
  struct Record {
    Revocations seen;
    Nanoseconds exposed_from_ns{0};
    bool is_exposed{false};
    std::int64_t flaps{0};  // revocations, each within the flap window of the previous one
    Nanoseconds revoked_ns{0};

    template <typename Image>
    void image(Image& image) {
      image(seen, exposed_from_ns, is_exposed, flaps, revoked_ns);
    }
  };

  Revocations& domain(std::size_t place);

  double prior_per_s_;
  double prior_s_;
  double window_s_;
  Nanoseconds hold_min_ns_;
  Nanoseconds hold_max_ns_;
  Nanoseconds flap_window_ns_;
  std::unordered_map<WorkerId, Record> workers_;  // never iterated
  std::vector<Revocations> domains_;              // by index
};

}  // namespace rose::scheduler
