// Fair sharing of a device between several jobs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "scheduler/events.h"
#include "scheduler/jobs.h"
#include "scheduler/settings.h"
#include "scheduler/worker_table.h"

namespace rose::scheduler {

// The jobs on one device. The start of a turn adds the turn's maximum tokens, divided by the job's
// weight, to the job's counter. A job is backlogged while it has a waiting turn that the empty
// device could run, unless that turn waits for newer weights or accepts only some versions. A job
// whose counter is more than `lead` above that of a backlogged job is barred: none of its turns
// starts here.
//
// Bound: in any interval in which jobs j and k are both backlogged,
//   | served_j / w_j - served_k / w_k | <= 2 lead + need_j / w_j + need_k / w_k
// where need is the maximum tokens of one turn of a job. Proof: the floor is the least counter of
// the backlogged jobs, and only rises. When a job becomes backlogged, its counter is raised to the
// floor, so idleness earns nothing. No job above floor + lead starts. So the counter of a
// backlogged job is within [floor, floor + lead + need / w], and two counters differ by at most
// lead + need / w.
class FairDevice {
 public:
  // `jobs`: every job with a worker here, and whether it is backlogged.
  void set_backlogged(const std::map<std::size_t, bool>& jobs);
  bool is_barred(std::size_t job, double lead_tokens) const noexcept;
  void serve(std::size_t job, double tokens_over_weight);

  template <typename Image>
  void image(Image& image) {
    image(floor_, jobs_);
  }

 private:
  struct Account {
    double served{0};
    bool is_backlogged{false};

    template <typename Image>
    void image(Image& image) {
      image(served, is_backlogged);
    }
  };

  double floor_{0};
  std::map<std::size_t, Account> jobs_;
};

inline void FairDevice::set_backlogged(const std::map<std::size_t, bool>& jobs) {
  for (auto& [job, account] : jobs_) account.is_backlogged &= jobs.contains(job);
  for (const auto& [job, is_backlogged] : jobs) {
    Account& account = jobs_[job];
    if (is_backlogged && !account.is_backlogged) account.served = std::max(account.served, floor_);
    account.is_backlogged = is_backlogged;
  }
}

inline bool FairDevice::is_barred(std::size_t job, double lead_tokens) const noexcept {
  const auto own = jobs_.find(job);
  if (own == jobs_.end()) return false;
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    const auto& [other, account] = entry;
    return other != job && account.is_backlogged &&
           own->second.served > account.served + lead_tokens;
  });
}

inline void FairDevice::serve(std::size_t job, double tokens_over_weight) {
  Account& account = jobs_[job];
  double least = account.served;
  for (const auto& [other, theirs] : jobs_) {
    if (theirs.is_backlogged) least = std::min(least, theirs.served);
  }
  floor_ = std::max(floor_, least);
  account.served += tokens_over_weight;
}

// All devices that several jobs share. Records in the workers' columns which jobs are barred.
class Fairness {
 public:
  explicit Fairness(const Settings& settings) noexcept
      : lead_tokens_{static_cast<double>(settings.fair_lead_tokens)},
        lag_max_{settings.worker_lag_max} {}

  // True if any device may be shared.
  static bool is_needed(const WorkerTable& workers) noexcept { return !workers.devices().empty(); }
  // Updates the backlogged jobs of all devices, and bars jobs that are too far ahead.
  void refresh(const JobTable& jobs, WorkerTable& workers);
  // As refresh() above, for one device only.
  void refresh(const JobTable& jobs, WorkerTable& workers, DeviceId device);
  void serve(const JobTable& jobs, const Worker& worker, std::int64_t tokens);

  template <typename Image>
  void image(Image& image) {
    image(devices_);
  }

 private:
  bool is_backlogged(const Job& job, const WorkerTable& workers, std::size_t slot) const noexcept;

  double lead_tokens_;
  std::int64_t lag_max_;
  std::map<DeviceId, FairDevice> devices_;
};

}  // namespace rose::scheduler
