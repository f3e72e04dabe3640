// The scheduler's statistics. Gauges are current values; counters run from the start.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "scheduler/events.h"
#include "scheduler/fates.h"

namespace rose::scheduler {

struct Counters {
  std::int64_t admitted{0};
  std::int64_t consumed{0};
  std::int64_t done{0};
  std::int64_t dropped{0};  // admitted or not
  std::int64_t recalls{0};
  std::int64_t outgrown{0};  // recalls because a turn outgrew its reservation
  std::int64_t resumed{0};   // starts in the middle of a turn
  std::int64_t stale_events{0};
  std::int64_t tokens_delivered{0};
  std::int64_t tokens_ignored{0};
  std::int64_t reprefill_tokens{0};
  std::array<std::int64_t, kWorkerKinds> turns{};  // finished, by kind of worker

  template <typename Image>
  void image(Image& image) {
    image(admitted, consumed, done, dropped, recalls, outgrown, resumed, stale_events,
          tokens_delivered, tokens_ignored, reprefill_tokens, turns);
  }
};

struct JobStats {
  std::int64_t published{0};
  std::int64_t admitted{0};
  std::int64_t done{0};
  std::int64_t dropped{0};
  std::int64_t consumed{0};
  std::int64_t stale{0};
  double length_bias{1};
};

struct Stats {
  Counters counters;
  Fates fates;
  std::int64_t waiting{0};
  std::int64_t environment{0};
  std::int64_t queued{0};
  std::int64_t running{0};
  std::int64_t recalled{0};
  std::map<WorkerId, std::int64_t> used_tokens;
  std::map<WorkerId, double> hazards_per_s;
  std::map<JobId, JobStats> jobs;
  double exposure_s{0};
  double recovery_bound_s{0};
};

}  // namespace rose::scheduler
