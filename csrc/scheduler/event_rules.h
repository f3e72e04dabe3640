// The effect of each event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/book.h"
#include "scheduler/events.h"

namespace rose::scheduler {

// Events have passed check(). A worker's report on a turn is accepted only while the worker holds
// that turn under the reported grant, or within the grace period. Other reports are counted and
// ignored.
class EventRules {
 public:
  explicit EventRules(Book& book) noexcept : book_{book} {}

  void apply(std::span<const Event> events);

  void operator()(const WorkerJoined& event);
  void operator()(const GrantChanged& event);
  void operator()(const WorkerLost& event);
  void operator()(const VersionPublished& event);
  void operator()(const VersionCommitted& event);
  void operator()(const TrajectoryCreated& event);
  void operator()(const TurnReady& event);
  void operator()(const TurnProgress& event);
  void operator()(const TurnEnded& event);
  void operator()(const TrajectoryEnded& event);
  void operator()(const Consumed& event);
  void operator()(const JobJoined& event);
  void operator()(const WorkerMeasured& event);
  void operator()(const WorkerDrained& event);
  void operator()(const TurnCut& event);
  void operator()(const Paused& event);
  void operator()(const Resumed& event);

 private:
  // Returns the trajectory that the event reports on, or null if the event is not accepted.
  template <typename E>
  Trajectory* find_turn(const E& event) noexcept;
  // Prefetches the trajectories of the events from index `begin` on.
  void prefetch(std::span<const Event> events, std::size_t begin) const noexcept;
  void deliver_news(Trajectory& trajectory, const TurnProgress& event);
  // Tokens of versions that the turn does not accept were reported, and are not delivered.
  void refuse(Trajectory& trajectory, const TurnProgress& event);
  void conclude(Trajectory& trajectory, TurnEnd end);
  // Recalls turns until the others fit the grant, and returns the number of recalls. Turns with the
  // least lag go first, then those that are cheapest to recompute, then the youngest trajectories.
  std::int64_t fit(std::size_t slot);

  Book& book_;
  std::int64_t place_{0};              // index of the current event
  std::vector<std::size_t> shrunk_;    // slots whose grants shrank
  std::vector<std::size_t> outgrown_;  // slots whose turns outgrew their grants
};

}  // namespace rose::scheduler
