// Kills a process together with the processes that it started.
#pragma once

#include <optional>
#include <string>

#include "base/process.h"
#include "base/status.h"

namespace rose {

// Paths of the kernel's process and cgroup trees; tests use their own directories.
struct CgroupTree {
  std::string proc{"/proc"};
  // Mount point of cgroup v2. If empty, it is read from <proc>/self/mounts.
  std::string mount{};
};

// Returns the directory of the cgroup (v2) that holds `process`, its descendants and nobody else.
// Returns nothing without cgroup v2, for the root, on a kernel before 5.14 (no cgroup.kill), for a
// cgroup outside our namespace, and if another process is in the cgroup or below it. Our own
// process counts as another process; so does an orphan, because its origin is not known any more.
std::optional<std::string> own_cgroup(const Process& process, const CgroupTree& tree = {}) noexcept;

// Sends SIGKILL to `process` by its descriptor and, if own_cgroup() finds one, to its whole cgroup.
// Ok if the process is already gone.
Status kill_with_cgroup(const Process& process, const CgroupTree& tree = {}) noexcept;

}  // namespace rose
