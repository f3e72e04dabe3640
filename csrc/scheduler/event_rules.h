// What each event changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/book.h"
#include "scheduler/events.h"

namespace rose::scheduler {

// The events have passed check(). What a worker says about a turn counts only if it has that turn,
// under that lease, now or until its grace period is over; the rest is counted and changes nothing.
class EventRules {
 public:
  explicit EventRules(Book& book) noexcept : book_{book} {}

  void apply(std::span<const Event> events);

  void operator()(const WorkerJoined& event);
  void operator()(const LeaseChanged& event);
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

 private:
  // The turn that `event` is about, when it may speak of it.
  template <typename E>
  Trajectory* find_turn(const E& event) noexcept;
  // Of the events from place `begin` on.
  void prefetch(std::span<const Event> events, std::size_t begin) const noexcept;
  void deliver_news(Trajectory& trajectory, const TurnProgress& event);
  void conclude(Trajectory& trajectory, TurnEnd end);
  // Recalls turns until the others fit the lease, and says how many: those that are least behind,
  // of them those that are cheapest to compute again, of them the youngest.
  std::int64_t fit(std::size_t slot);

  Book& book_;
  std::int64_t place_{0};              // of the event at hand
  std::vector<std::size_t> shrunk_;    // leases
  std::vector<std::size_t> outgrown_;  // by their turns
};

}  // namespace rose::scheduler
