// The queue order of a baseline: multi-level feedback by received service, without prediction.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "scheduler/trajectory_table.h"
#include "scheduler/turn_queue.h"

namespace rose::scheduler {

// Follows the C-MLFQ of Libra (arXiv 2606.03077), which we know only from descriptions by others:
// an elastic pool, levels by service, and promotion when a tool returns. Level widths and promotion
// distance are our own.
//
// Level 0 ends at one quantum of output tokens over all turns of the trajectory; each further level
// is as wide as all levels below it together.
std::int64_t level_of(std::int64_t said_tokens, std::int64_t quantum_tokens) noexcept;

// Within a level, first come, first served. A turn that follows a tool call is promoted by one
// level, unless the turn was queued again after leaving a worker.
QueueKey mlfq_key(const Trajectory& trajectory, QueueRank rank, std::int64_t quantum_tokens,
                  Nanoseconds now_ns) noexcept;

}  // namespace rose::scheduler
