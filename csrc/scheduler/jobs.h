// The RL jobs that share the scheduler, each with its own trainer, versions and staleness.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>

#include "scheduler/events.h"
#include "scheduler/outlook.h"
#include "scheduler/settings.h"

namespace rose::scheduler {

struct Job {
  explicit Job(const Settings& settings = {}) noexcept : outlook{settings} {}

  JobId number{0};
  std::int64_t batch_trajectories{1};
  std::int64_t max_staleness{0};
  double weight{1};

  std::int64_t created{0};
  std::int64_t published{0};
  Nanoseconds published_ns{0};  // time at which `published` was reported
  std::int64_t admitted{0};
  std::int64_t dropped_admitted{0};  // dropped after admission
  std::int64_t done{0};
  std::int64_t dropped{0};  // admitted or not
  std::int64_t consumed{0};
  std::map<std::int64_t, TrajectoryId> waiting;  // by ticket: trajectories that wait for admission
  std::map<std::int64_t, std::int64_t> wants;    // needed tokens -> number of queued turns
  std::map<std::int64_t, std::int64_t> places;   // place in line -> number of queued turns
  Outlook outlook;

  void want(std::int64_t tokens, std::int64_t place_in_line) {
    ++wants[tokens];
    ++places[place_in_line];
  }
  void want_no_more(std::int64_t tokens, std::int64_t place_in_line) {
    take_one(wants, tokens);
    take_one(places, place_in_line);
  }

  std::int64_t ahead_max() const noexcept { return (max_staleness + 1) * batch_trajectories; }
  // Trajectories that started and were not consumed.
  std::int64_t ahead() const noexcept { return admitted - dropped_admitted - consumed; }
  // Minimum number of versions that are published before the trainer uses a running trajectory. The
  // trainer first uses the trajectories that were admitted before this one or are done.
  std::int64_t versions_before(std::int64_t place_in_line) const noexcept {
    const std::int64_t before = (place_in_line > done ? place_in_line : done) - consumed;
    const std::int64_t others = ahead() - 1;
    return (before < others ? before : others) / batch_trajectories;
  }
  // The oldest version whose tokens, generated now for this trajectory, will not be stale when the
  // trainer uses them.
  std::int64_t oldest_version(std::int64_t place_in_line) const noexcept {
    return published + versions_before(place_in_line) - max_staleness;
  }
  // True if one more trajectory may start. Core explains the rule.
  bool can_admit() const noexcept { return ahead() < ahead_max(); }
  // Largest value that ahead() can reach before the next consumption, if all waiting trajectories
  // start.
  std::int64_t could_be_ahead() const noexcept {
    const std::int64_t all = ahead() + static_cast<std::int64_t>(waiting.size());
    return all < ahead_max() ? all : ahead_max();
  }

  template <typename Image>
  void image(Image& image) {
    image(number, batch_trajectories, max_staleness, weight, created, published, published_ns,
          admitted, dropped_admitted, done, dropped, consumed, waiting, wants, places, outlook);
  }

 private:
  static void take_one(std::map<std::int64_t, std::int64_t>& counts, std::int64_t key) {
    const auto found = counts.find(key);
    if (found != counts.end() && --found->second == 0) counts.erase(found);
  }
};

// Jobs in the order of their first event. A job that never joined has the values of the settings.
// No job is ever removed, because the validity of later events depends on its counts.
class JobTable {
 public:
  explicit JobTable(const Settings& settings) noexcept : settings_{settings} {}

  std::size_t size() const noexcept { return jobs_.size(); }
  Job& operator[](std::size_t place) noexcept { return jobs_[place]; }
  const Job& operator[](std::size_t place) const noexcept { return jobs_[place]; }
  std::optional<std::size_t> find(JobId number) const noexcept;
  // The index of a job, which is created if it is unknown.
  std::size_t place_of(JobId number);
  // Sets new values, and keeps the counts.
  void join(const JobJoined& event);

  template <typename Image>
  void image(Image& image) {
    image(jobs_, places_);
  }
  bool is_in_bounds() const noexcept {
    const auto is_place = [&](const auto& entry) { return entry.second < size(); };
    const auto is_job = [](const Job& job) { return job.outlook.is_in_bounds(); };
    return std::all_of(places_.begin(), places_.end(), is_place) &&
           std::all_of(jobs_.begin(), jobs_.end(), is_job);
  }

 private:
  Settings settings_;
  std::deque<Job> jobs_;
  std::unordered_map<JobId, std::size_t> places_;  // never iterated
};

}  // namespace rose::scheduler
