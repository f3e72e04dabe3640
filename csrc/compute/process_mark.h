// Who a process is, in words that can lie in shared memory.
#pragma once

#include <cstdint>

#include "base/process.h"
#include "base/status.h"

namespace rose::compute {

// A number of a process names another one later; together with the time it started it does not.
struct ProcessMark {
  std::int32_t pid{0};
  std::uint64_t started_ticks{0};  // since the machine booted, as /proc tells it
};

Result<ProcessMark> own_mark() noexcept;

// Unavailable when that process is gone, whoever has its number now.
Result<Process> open_process(const ProcessMark& mark) noexcept;

}  // namespace rose::compute
