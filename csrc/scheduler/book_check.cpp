// Checks whether a book can result from events, because an image may contain anything.
#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "scheduler/book.h"
#include "scheduler/bounds.h"

namespace rose::scheduler {

namespace {

bool is_sound(const Counters& of) noexcept {
  const auto& [dedicated, borrowed] = of.turns;
  const auto all = {of.admitted,         of.consumed,       of.done,    of.dropped,
                    of.recalls,          of.outgrown,       of.resumed, of.stale_events,
                    of.tokens_delivered, of.tokens_ignored, dedicated,  borrowed,
                    of.reprefill_tokens};
  return std::all_of(all.begin(), all.end(), is_total);
}

// A job's counts, from its trajectories.
struct JobSeen {
  std::int64_t waiting{0};
  std::set<std::size_t> lives;
  std::int64_t admitted{0};
  std::map<std::int64_t, std::int64_t> wants;
  std::map<std::int64_t, std::int64_t> places;
};

// A worker's load, counted from the trajectories.
struct WorkerSeen {
  std::size_t turns{0};
  std::int64_t used_tokens{0};
  std::int64_t backlog_tokens{0};
  std::int64_t restart_tokens{0};
  std::set<CacheId> caches;
};

}  // namespace

// Checks that every part is sound, and that the parts agree.
class BookCheck {
 public:
  explicit BookCheck(const Book& book)
      : book_{book},
        jobs_(book.jobs.size()),
        workers_(book.workers.size()),
        exposures_{book.settings} {}

  bool is_sound() {
    if (!book_.trajectories.all([&](const Trajectory& each) { return see(each); })) return false;
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
      if (!agrees(job)) return false;
    }
    for (std::size_t slot = 0; slot < workers_.size(); ++slot) {
      if (!agrees_of_worker(slot)) return false;
    }
    return book_.turns.is_sound(queued_, unstarved_) &&
           book_.risk.exposures.is_equal(exposures_, jobs_.size());
  }

 private:
  bool see(const Trajectory& each) {
    JobSeen& job = jobs_[each.job];
    if (!book_.jobs[each.job].outlook.knows(each)) return false;
    if (each.state == TrajectoryState::kWaiting) {
      ++job.waiting;
      const auto& waiting = book_.jobs[each.job].waiting;
      const auto found = waiting.find(each.ticket);
      return found != waiting.end() && found->second == each.id && !each.run.is_held;
    }
    ++job.admitted;
    job.lives.insert(each.life_number);
    if (each.state == TrajectoryState::kQueued && !see_queued(each)) return false;
    if (!see_cache(each)) return false;
    return each.run.is_held ? see_held(each) : each.state != TrajectoryState::kRunning;
  }

  bool see_queued(const Trajectory& each) {
    ++queued_;
    unstarved_ += book_.turns.has_unstarved(each.queue_key, each.queued_ns) ? 1 : 0;
    ++jobs_[each.job].wants[each.need_tokens()];
    ++jobs_[each.job].places[each.place_in_line];
    return each.queue_key.trajectory == each.id && each.queue_key.job == each.job &&
           each.queue_key.rank != QueueRank::kStarved && each.max_new_tokens > 0 &&
           book_.turns.has(each.queue_key, each.queued_ns);
  }

  bool see_cache(const Trajectory& each) {
    const Home& home = each.home;
    const auto slot = book_.workers.find(home.worker);
    if (home.cache < kForgotten) return false;
    if (home.cache == kNoCache || !slot || !home.is_at(book_.workers[*slot])) return true;
    if (!home.is_warm(book_.workers[*slot])) return book_.workers[*slot].caches.has_had(home.cache);
    return book_.workers[*slot].caches.tokens_of(home.cache) == home.cached_tokens &&
           !each.run.is_held && workers_[*slot].caches.insert(home.cache).second;
  }

  bool see_held(const Trajectory& each) {
    const Run& run = each.run;
    const Worker& worker = book_.workers[run.slot];
    WorkerSeen& seen = workers_[run.slot];
    ++seen.turns;
    seen.used_tokens += run.reserved_tokens;
    seen.backlog_tokens += run.prefill_tokens;
    seen.restart_tokens += run.restart_tokens;
    exposures_.add(each.job, run.domain, run.exposed);
    return is_on_worker(each.state) && worker.grant.is_live && run.worker == worker.number &&
           run.kind == worker.kind && run.grant_epoch == worker.grant.epoch &&
           run.domain == worker.domain && each.job == worker.job &&
           std::find(worker.held.begin(), worker.held.end(), each.id) != worker.held.end();
  }

  bool agrees(std::size_t place) const {
    const Job& job = book_.jobs[place];
    const JobSeen& seen = jobs_[place];
    const auto admitted = static_cast<std::size_t>(seen.admitted);
    return static_cast<std::size_t>(seen.waiting) == job.waiting.size() &&
           seen.lives.size() == admitted && admitted == job.outlook.lives() &&
           seen.admitted == job.admitted - job.dropped_admitted - job.done &&
           seen.wants == job.wants && seen.places == job.places;
  }

  bool agrees_of_worker(std::size_t slot) {
    const Worker& worker = book_.workers[slot];
    const WorkerSeen& seen = workers_[slot];
    if (worker.grant.is_live) {
      exposures_.add(worker.job, worker.domain,
                     {.prefill_tokens_per_s = worker.prefill_tokens_per_s});
    }
    return worker.held.size() == seen.turns && worker.used_tokens == seen.used_tokens &&
           worker.backlog_tokens == seen.backlog_tokens &&
           worker.restart_tokens == seen.restart_tokens &&
           static_cast<std::size_t>(worker.caches.count()) == seen.caches.size();
  }

  const Book& book_;
  std::vector<JobSeen> jobs_;
  std::vector<WorkerSeen> workers_;
  ExposureTable exposures_;
  std::size_t queued_{0};
  std::size_t unstarved_{0};
};

bool Book::is_sound() {
  // The order matters: each check reads only what the earlier ones have checked.
  return settings.is_sound() && now_ns >= 0 && is_time(now_ns) && scheduler::is_sound(counters) &&
         jobs.is_sound() && risk.is_sound(jobs.size()) && fairness.is_sound(jobs.size()) &&
         workers.is_sound(jobs.size(), risk.exposures.domains()) &&
         trajectories.is_sound(jobs.size(), workers.size(), risk.exposures.domains()) &&
         are_graces_sound() && BookCheck{*this}.is_sound();
}

bool Book::are_graces_sound() const {
  const auto is_earlier = [](const Grace& one, const Grace& other) {
    return one.until_ns < other.until_ns;
  };
  std::set<std::pair<Nanoseconds, TrajectoryId>> ends;
  for (const Grace& grace : graces_) {
    if (!is_time(grace.until_ns)) return false;
    ends.insert({grace.until_ns, grace.trajectory});
  }
  return std::is_sorted(graces_.begin(), graces_.end(), is_earlier) &&
         trajectories.all([&](const Trajectory& each) {
           return each.state != TrajectoryState::kRecalled ||
                  ends.contains({each.recalled_until_ns, each.id});
         });
}

}  // namespace rose::scheduler
