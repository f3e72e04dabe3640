#include "scheduler/batch_check.h"

#include <optional>
#include <string>
#include <unordered_map>

namespace rose::scheduler {

namespace {

constexpr std::int64_t kStalenessMax = std::int64_t{1} << 20;
// Limit of a job's trajectories ahead of its trainer, so that no sum of counts overflows 64 bits.
constexpr std::int64_t kAheadMax = std::int64_t{1} << 60;
// With rates and costs within these limits, every derived number is finite.
constexpr double kRateMin = 1e-6;
constexpr auto kRateMax = static_cast<double>(kCountMax);
// Weights are from this value to its inverse, so tokens divided by a weight fit a double easily.
constexpr double kJobWeightMin = 1e-6;

bool is_rate(double value) noexcept { return value >= kRateMin && value <= kRateMax; }
bool is_cost(double value) noexcept { return value >= 0 && value <= kRateMax; }

std::string got(const char* rule, std::int64_t value) {
  return std::string{rule} + ", got " + std::to_string(value);
}

std::string got(const char* rule, double value) {
  return std::string{rule} + ", got " + text_of(value);
}

Status refuse(const char* event, const char* subject, std::int64_t number, std::string why) {
  return Status::invalid_argument(std::string{event} + "(" + subject + "=" +
                                  std::to_string(number) + "): " + std::move(why));
}

// The rule that the rates of a worker break; none if they are valid.
template <typename E>
std::optional<std::string> why_no_rates(const E& event) {
  if (!is_rate(event.prefill_tokens_per_s)) {
    return got("prefill_tokens_per_s must be from 1e-6 to 2^40", event.prefill_tokens_per_s);
  }
  if (!is_rate(event.decode_step_ms)) {
    return got("decode_step_ms must be from 1e-6 to 2^40", event.decode_step_ms);
  }
  if (!is_cost(event.decode_ms_per_sequence)) {
    return got("decode_ms_per_sequence must be from 0 to 2^40", event.decode_ms_per_sequence);
  }
  return std::nullopt;
}

// The scheduler's state after the driver's events checked so far. The workers' events of the batch
// do not count, because the driver has not seen their effects yet.
class Checker {
 public:
  explicit Checker(const Book& book) noexcept : book_{book} {}

  Status operator()(const WorkerJoined& event) {
    const auto refuse_it = [&](std::string why) {
      return refuse("WorkerJoined", "worker", event.worker, std::move(why));
    };
    if (!is_count(event.worker)) return refuse_it("its number must be from 0 to 2^40");
    if (is_joined(event.worker)) return refuse_it("it exists already");
    if (!is_count(event.seats) || event.seats == 0) {
      return refuse_it(got("seats must be from 1 to 2^40", event.seats));
    }
    if (auto why = why_no_rates(event)) return refuse_it(std::move(*why));
    if (!is_cost(event.decode_ms_per_context_token)) {
      return refuse_it(got("decode_ms_per_context_token must be from 0 to 2^40",
                           event.decode_ms_per_context_token));
    }
    if (!is_count(event.version)) {
      return refuse_it(got("version must be from 0 to 2^40", event.version));
    }
    if (event.job < 0) return refuse_it(got("its job must be >= 0", event.job));
    if (event.device < kOwnDevice) return refuse_it(got("its device must be >= 0", event.device));
    workers_[event.worker] = true;
    return {};
  }

  Status operator()(const WorkerLost& event) {
    workers_[event.worker] = false;
    return {};
  }

  Status operator()(const VersionPublished& event) {
    const auto refuse_it = [&](std::string why) {
      return refuse("VersionPublished", "version", event.version, std::move(why));
    };
    if (!is_count(event.version)) return refuse_it("it must be from 0 to 2^40");
    if (event.job < 0) return refuse_it(got("its job must be >= 0", event.job));
    return {};
  }

  Status operator()(const TrajectoryCreated& event) {
    if (event.trajectory < 0) {
      return refuse("TrajectoryCreated", "trajectory", event.trajectory, "it must be >= 0");
    }
    if (find(event.trajectory)) {
      return refuse("TrajectoryCreated", "trajectory", event.trajectory, "it exists already");
    }
    if (event.job < 0) {
      return refuse("TrajectoryCreated", "trajectory", event.trajectory,
                    got("its job must be >= 0", event.job));
    }
    seen_[event.trajectory] = Seen{.state = TrajectoryState::kWaiting, .turn = 0, .job = event.job};
    return {};
  }

  Status operator()(const TurnReady& event) {
    const auto refuse_it = [&](std::string why) {
      return refuse("TurnReady", "trajectory", event.trajectory, std::move(why));
    };
    const std::optional<Seen> seen = find(event.trajectory);
    if (!seen) return refuse_it("it does not exist");
    if (seen->state == TrajectoryState::kWaiting) return refuse_it("it was not admitted");
    if (seen->state != TrajectoryState::kEnv) return refuse_it("it has a turn already");
    if (event.turn != seen->turn) {
      return refuse_it("its next turn is " + std::to_string(seen->turn) + ", not " +
                       std::to_string(event.turn));
    }
    if (!is_count(event.context_tokens)) {
      return refuse_it(got("context_tokens must be from 0 to 2^40", event.context_tokens));
    }
    if (!is_count(event.max_new_tokens) || event.max_new_tokens == 0) {
      return refuse_it(got("max_new_tokens must be from 1 to 2^40", event.max_new_tokens));
    }
    if (!is_count(event.version_min) || !is_count(event.version_max) ||
        event.version_min > event.version_max) {
      return refuse_it("its versions must be a range in 0 to 2^40, got " +
                       std::to_string(event.version_min) + " to " +
                       std::to_string(event.version_max));
    }
    seen_[event.trajectory] =
        Seen{.state = TrajectoryState::kQueued, .turn = seen->turn, .job = seen->job};
    return {};
  }

  Status operator()(const TrajectoryEnded& event) {
    const std::optional<Seen> seen = find(event.trajectory);
    if (!seen) {
      return refuse("TrajectoryEnded", "trajectory", event.trajectory, "it does not exist");
    }
    if (seen->state == TrajectoryState::kEnv) ++left_[seen->job];
    seen_[event.trajectory] = std::nullopt;
    return {};
  }

  Status operator()(const Consumed& event) {
    if (event.job < 0) return refuse("Consumed", "job", event.job, "its number must be >= 0");
    const auto place = book_.jobs.find(event.job);
    const std::int64_t before =
        place ? book_.jobs[*place].done - book_.jobs[*place].consumed : std::int64_t{0};
    const std::int64_t left = before + left_[event.job];
    if (event.trajectories < 0 || event.trajectories > left) {
      return refuse("Consumed", "trajectories", event.trajectories,
                    "only " + std::to_string(left) + " are done and not consumed");
    }
    left_[event.job] -= event.trajectories;
    return {};
  }

  Status operator()(const JobJoined& event) {
    const auto refuse_it = [&](std::string why) {
      return refuse("JobJoined", "job", event.job, std::move(why));
    };
    if (event.job < 0) return refuse_it("its number must be >= 0");
    if (!is_count(event.batch_trajectories) || event.batch_trajectories == 0) {
      return refuse_it(got("batch_trajectories must be from 1 to 2^40", event.batch_trajectories));
    }
    if (event.max_staleness < 0 || event.max_staleness > kStalenessMax) {
      return refuse_it(got("max_staleness must be from 0 to 2^20", event.max_staleness));
    }
    if (event.max_staleness >= kAheadMax / event.batch_trajectories) {
      return refuse_it("max_staleness * batch_trajectories must be below 2^60");
    }
    if (!(event.weight >= kJobWeightMin && event.weight <= 1 / kJobWeightMin)) {
      return refuse_it(got("weight must be from 1e-6 to 1e6", event.weight));
    }
    return {};
  }

  Status operator()(const WorkerMeasured& event) {
    if (auto why = why_no_rates(event)) {
      return refuse("WorkerMeasured", "worker", event.worker, std::move(*why));
    }
    return {};
  }

  Status operator()(const TurnCut& event) {
    if (is_count(event.tokens)) return {};
    return refuse("TurnCut", "trajectory", event.trajectory,
                  got("tokens must be from 0 to 2^40", event.tokens));
  }

  Status operator()(const WorkerDrained&) { return {}; }
  Status operator()(const Paused&) { return {}; }
  Status operator()(const Resumed&) { return {}; }

  // Reports of workers.
  Status operator()(const GrantChanged&) { return {}; }
  Status operator()(const VersionCommitted&) { return {}; }
  Status operator()(const TurnProgress&) { return {}; }
  Status operator()(const TurnEnded&) { return {}; }

 private:
  struct Seen {
    TrajectoryState state;
    std::int64_t turn;
    JobId job;
  };

  bool is_joined(WorkerId number) const {
    const auto found = workers_.find(number);
    return found == workers_.end() ? book_.workers.find(number).has_value() : found->second;
  }

  std::optional<Seen> find(TrajectoryId id) const {
    if (const auto found = seen_.find(id); found != seen_.end()) return found->second;
    const Trajectory* const known = book_.trajectories.find(id);
    if (known == nullptr) return std::nullopt;
    return Seen{.state = known->state, .turn = known->turn, .job = book_.jobs[known->job].number};
  }

  const Book& book_;
  std::unordered_map<TrajectoryId, std::optional<Seen>> seen_;
  std::unordered_map<WorkerId, bool> workers_;
  // Per job, the trajectories that this batch completes, minus those that it consumes.
  std::unordered_map<JobId, std::int64_t> left_;
};

}  // namespace

Status check(std::span<const Event> events, const Book& book) {
  Checker checker{book};
  for (const Event& event : events) ROSE_TRY(std::visit(checker, event));
  return {};
}

}  // namespace rose::scheduler
