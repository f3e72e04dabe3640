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

// Uses no thread, clock, I/O or randomness, and does not depend on the order of a hash table:
// the same events at the same times give the same actions in production, replay and simulation.
// One thread at a time.
//
// A step does this in order: apply its events; end expired grants, except those that this step
// renewed; queue turns whose grace period is over; admit trajectories; start turns; and recall
// stalled turns.
//
// Staleness, for each job: a trainer that takes B trajectories per version has consumed c = v B at
// version v. Suppose that trajectories are used in the order of their starts. Of those that
// started and are not consumed, the first has number 1. Number k is used in the ceil(k / B)-th
// version from now; the first version from now is the one that is being made. So a trajectory
// is used at most S (max_staleness) versions after the version with which it started if, at its
// start and counting itself,
//   started - consumed <= (S + 1) B.
// This is AReaL's rule started <= (S + v + 1) B without the assumption that c is exactly v B.
class Core {
 public:
  Core(const Settings& settings, PlacementPolicy policy) noexcept
      : book_{settings, policy}, rules_{book_}, dispatch_{book_} {}
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Appends the step's actions to `actions`.
  // InvalidArgument: the driver contradicts itself; nothing has changed.
  // Internal: a bug in the scheduler.
  Status step(std::span<const Event> events, Nanoseconds now_ns, std::vector<Action>& actions);
  Stats stats() const;
  // Trajectories whose turn runs on a worker, or is being recalled from it.
  std::int64_t on_workers() const noexcept;
  // The same of one worker, in time that is linear in the number of trajectories.
  std::int64_t turns_on(WorkerId worker) const noexcept;
  // True if every trajectory is in its environment: then time changes only grants.
  bool is_idle() const noexcept;
  // Lets no grant expire before `until_ns`, after a time in which no renewals could be received.
  void keep_grants(Nanoseconds until_ns) noexcept { book_.workers.keep_grants(until_ns); }

  // The complete state. Equal cores give equal bytes.
  std::vector<std::byte> snapshot();
  // A core with the state of an image. Corrupt: the bytes are not a valid image.
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
