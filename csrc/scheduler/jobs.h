// The RL jobs that share the scheduler: each with its trainer, its versions and its staleness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "scheduler/ages.h"
#include "scheduler/events.h"
#include "scheduler/settings.h"

namespace rose::scheduler {

struct Job {
  JobId number{0};
  std::int64_t batch_trajectories{1};
  std::int64_t max_staleness{0};
  double weight{1};

  std::int64_t published{0};
  std::int64_t admitted{0};
  std::int64_t dropped_admitted{0};  // those that the trainer would have waited for
  std::int64_t done{0};
  std::int64_t dropped{0};  // admitted or not
  std::int64_t consumed{0};
  std::deque<TrajectoryId> waiting;  // for admission, in order; some may be gone
  AgeSum ages;                       // of the admitted that are not over

  // Whether one more may start: see Core.
  bool can_admit() const noexcept {
    const std::int64_t ahead_max = (max_staleness + 1) * batch_trajectories;
    return admitted - dropped_admitted - consumed < ahead_max;
  }

  template <typename Image>
  void image(Image& image) {
    image(number, batch_trajectories, max_staleness, weight, published, admitted, dropped_admitted,
          done, dropped, consumed, waiting, ages);
  }
};

// Jobs in the order in which they were first heard of. One that was never told of has the values of
// the settings. None is ever forgotten: its consumed counts bound what its front may say.
class JobTable {
 public:
  explicit JobTable(const Settings& settings) noexcept
      : batch_trajectories_{settings.batch_trajectories}, max_staleness_{settings.max_staleness} {}

  std::size_t size() const noexcept { return jobs_.size(); }
  Job& operator[](std::size_t place) noexcept { return jobs_[place]; }
  const Job& operator[](std::size_t place) const noexcept { return jobs_[place]; }
  std::optional<std::size_t> find(JobId number) const noexcept;
  // Makes it if it was never heard of.
  std::size_t place_of(JobId number);
  // New values; what was counted stays.
  void join(const JobJoined& event);

  template <typename Image>
  void image(Image& image) {
    image(jobs_, places_);
  }
  bool is_sound() const noexcept;

 private:
  std::int64_t batch_trajectories_;
  std::int64_t max_staleness_;
  std::deque<Job> jobs_;
  std::unordered_map<JobId, std::size_t> places_;  // looked up, never walked
};

}  // namespace rose::scheduler
