// A cluster in virtual time: the scheduler's core with everything around it that is not real.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "scheduler/core.h"
#include "sim/digest.h"
#include "sim/flight.h"
#include "sim/inbox.h"
#include "sim/outcome.h"
#include "sim/timeline.h"
#include "sim/trainer.h"
#include "sim/worker.h"
#include "sim/world.h"

namespace rose::sim {

// Whether to go on; asked now and then, with how many events there were.
using GoOn = std::function<bool(Nanoseconds now_ns, std::int64_t events)>;

// Discrete events. The front is that of production: it gathers news, steps the core with them and
// with what follows from its answers until nothing follows, and steps it now and then anyway. It
// hears of news `gather_ns` after the first of them; what the core wants done is done at once.
//
// Equal worlds give equal outcomes: events at one time happen in the order in which they were
// foreseen, nothing is random, and no order of a hash table shows.
class Cluster {
 public:
  // `core` is new, and nobody else steps it. `world` stays where it is.
  Cluster(const World& world, scheduler::Core& core);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Once. Internal: a bug in the scheduler, or here.
  Status run(const GoOn& go_on);
  Outcome outcome() const;

 private:
  struct Revocation {
    Nanoseconds at_ns;
    std::int64_t left;  // turns that do not run again yet
    Nanoseconds recovery_ns;
  };

  // When the next thing happens, or the next step is due.
  Nanoseconds next_ns() const noexcept;
  Nanoseconds step_due_ns() const noexcept;
  Status advance();
  void happen(const Moment& moment);
  void note_revocation(const std::vector<TrajectoryId>& victims);
  Status step();
  Status tell();
  void create();
  // The trainer takes a batch, if it can.
  void train(std::int64_t job);
  void learned(std::int64_t job);
  void over(Flight& flight, FlightState state);

  Status act(const scheduler::Admit& action);
  Status act(const scheduler::Start& action);
  Status act(const scheduler::Stop& action);
  Status act(const scheduler::Deliver& action);
  Status act(const scheduler::TurnDone& action);
  Status act(const scheduler::Drop& action);

  Flight& flight_of(TrajectoryId id) noexcept { return flights_[static_cast<std::size_t>(id)]; }
  const JobSpec& job_of(const Flight& flight) const noexcept {
    return world_.jobs[static_cast<std::size_t>(flight.job)];
  }
  RolloutWorker& worker_at(std::int64_t place) noexcept {
    return workers_[static_cast<std::size_t>(place)];
  }
  // Of the turn at hand, among those of the job.
  std::size_t turn_of(const Flight& flight) const noexcept;
  scheduler::TurnReady ready(const Flight& flight) const noexcept;
  void restarted(Flight& flight) noexcept;
  bool is_over() const noexcept;

  const World& world_;
  scheduler::Core& core_;
  Timeline timeline_;
  Inbox inbox_;
  std::vector<Flight> flights_;  // by number, those of one job behind those of the other
  std::vector<std::int64_t> turn_tokens_max_;  // by job
  std::deque<RolloutWorker> workers_;
  std::unordered_map<WorkerId, std::int64_t> place_of_;  // looked up, never walked
  std::deque<Trainer> trainers_;
  std::vector<Revocation> revocations_;

  Nanoseconds now_ns_{0};
  Nanoseconds stepped_ns_{0};
  std::vector<scheduler::Event> told_;     // in the step at hand
  std::vector<scheduler::Event> answers_;  // of the front, to what the core said
  std::vector<scheduler::Action> actions_;

  std::vector<std::int64_t> delivered_;  // by job
  std::vector<std::int64_t> dropped_;
  std::int64_t reported_{0};
  std::int64_t events_{0};
  std::int64_t decisions_{0};
  Digest digest_;
  std::vector<LoggedStep> log_;
};

}  // namespace rose::sim
