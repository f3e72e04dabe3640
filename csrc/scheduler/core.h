// The scheduler: a deterministic step(events, now) -> actions.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "scheduler/actions.h"
#include "scheduler/book.h"
#include "scheduler/dispatch.h"
#include "scheduler/event_rules.h"
#include "scheduler/events.h"
#include "scheduler/settings.h"
#include "scheduler/stats.h"

namespace rose::scheduler {

// No thread, clock, I/O or randomness, and no order of a hash table shows: the same events at the
// same times give the same actions, in production, replay and simulation. One thread at a time.
//
// A step applies its events in order; ends leases that have run out, unless this step renewed them:
// whoever renews is alive; queues turns whose grace period is over; admits; starts what can start;
// and frees what is stuck.
//
// Staleness, for each job: a trainer that takes B trajectories per version has consumed c = v B at
// version v. Of those that started and were not consumed, the k-th is used in the ceil(k / B)-th
// version from now, the one in the making being the first, when they are used in the order of their
// starts. So it is used at most S versions after the one it started with if
//   started - consumed <= (S + 1) B, itself included,
// which is AReaL's started <= (S + v + 1) B without the assumption that c is exactly v B.
class Core {
 public:
  Core(const Settings& settings, Policy policy) noexcept
      : book_{settings, policy}, rules_{book_}, dispatch_{book_} {}
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Appends to `actions`. InvalidArgument: the front contradicts itself, and nothing has changed.
  // Internal: a bug in the scheduler.
  Status step(std::span<const Event> events, Nanoseconds now_ns, std::vector<Action>& actions);
  Stats stats() const;
  // No lease runs out before then: nobody heard those who renewed.
  void keep_leases(Nanoseconds until_ns) noexcept { book_.workers.keep_leases(until_ns); }

  // All that decides what it does next. Equal cores give equal bytes.
  std::vector<std::byte> snapshot();
  // A core that goes on where the one of the image was. Corrupt: the bytes are no image.
  static Result<std::unique_ptr<Core>> restored(std::span<const std::byte> bytes);

 private:
  void expire();
  void admit();
  void admit_of(std::size_t place);

  Book book_;
  EventRules rules_;
  Dispatch dispatch_;
};

}  // namespace rose::scheduler
