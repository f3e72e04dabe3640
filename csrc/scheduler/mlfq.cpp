#include "scheduler/mlfq.h"

#include <algorithm>
#include <bit>

namespace rose::scheduler {

std::int64_t level_of(std::int64_t said_tokens, std::int64_t quantum_tokens) noexcept {
  const std::int64_t quanta = said_tokens / std::max<std::int64_t>(quantum_tokens, 1);
  return static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(quanta)));
}

QueueKey mlfq_key(const Trajectory& trajectory, QueueRank rank, std::int64_t quantum_tokens,
                  Nanoseconds now_ns) noexcept {
  const bool is_from_tool = trajectory.turn > 0 && rank == QueueRank::kFresh;
  const std::int64_t served = level_of(trajectory.said_tokens, quantum_tokens);
  return {.rank = rank,
          .level = std::max<std::int64_t>(0, served - (is_from_tool ? 1 : 0)),
          .order_ns = now_ns,
          .trajectory = trajectory.id,
          .job = trajectory.job};
}

}  // namespace rose::scheduler
