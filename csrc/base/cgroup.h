// A process that is killed together with the processes it started.
#pragma once

#include <optional>
#include <string>

#include "base/process.h"
#include "base/status.h"

namespace rose {

// Where the kernel shows processes and cgroups; a test has directories of its own.
struct CgroupTree {
  std::string proc{"/proc"};
  // Where cgroup v2 is mounted; empty: wherever the kernel says.
  std::string mount{};
};

// The directory of the cgroup (v2) that holds `process`, its offspring and nobody else; nothing
// where there is none: no cgroup v2, the root, a kernel before 5.14 (no cgroup.kill), a cgroup
// outside our namespace, or somebody else in it or below it. We are always somebody else; so is a
// process that outlived the one that started it, because nothing shows any more whose it was.
std::optional<std::string> own_cgroup(const Process& process, const CgroupTree& tree = {}) noexcept;

// SIGKILL for `process`, by its cgroup where it has one of its own, so that its helpers die with
// it; and by its descriptor in any case, which needs no cgroup. Ok also when it is gone already.
Status kill_with_cgroup(const Process& process, const CgroupTree& tree = {}) noexcept;

}  // namespace rose
