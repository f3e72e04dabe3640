// The order of a baseline: multi-level feedback by what a trajectory was served, no prediction.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "scheduler/trajectory_table.h"
#include "scheduler/turn_queue.h"

namespace rose::scheduler {

// After the C-MLFQ of Libra (arXiv 2606.03077), as far as it is known here at second hand: an
// elastic pool, levels by service, and the return of a tool as the signal that moves a trajectory
// up. The widths of the levels and how far it moves are ours.
//
// 0 below a quantum of tokens that all turns of the trajectory have said; each level above takes
// as many as all before it.
std::int64_t level_of(std::int64_t said_tokens, std::int64_t quantum_tokens) noexcept;

// Within a level, first come, first served. A turn that comes from a tool, and not from a worker
// that it left, is one level higher than its service says.
QueueKey mlfq_key(const Trajectory& trajectory, QueueRank rank, std::int64_t quantum_tokens,
                  Nanoseconds now_ns) noexcept;

}  // namespace rose::scheduler
