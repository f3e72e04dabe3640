// Watches a tenant in another process, and acts when it returns a slab, misses a deadline, or dies.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/owned_thread.h"
#include "base/process.h"
#include "memory/arbiter.h"

namespace rose::memory {

// Owns a thread that sleeps until one of three things happens. If the tenant rings, the thread
// takes back the slabs that the tenant has left. If the arbiter reports the tenant as late, the
// thread kills the tenant's process, and also its descendants if a cgroup contains nothing else. If
// the process has ended, the thread takes everything back. The thread runs no Python, so no
// interpreter can delay it.
//
// The end of the process proves that all its work on the host is complete. A forked process that
// shares the mapping is not watched: a tenant must not fork without exec.
//
// Thread rule: any thread. The destructor joins the thread and kills no process; in a forked child
// it has no effect.
class TenantWatch {
 public:
  // `kills_late`: whether a missed deadline kills the tenant's process. Otherwise late slabs stay
  // in quarantine until the tenant leaves them or dies.
  static Result<std::unique_ptr<TenantWatch>> create(std::shared_ptr<Arbiter> arbiter,
                                                     PartitionId partition, Process process,
                                                     bool kills_late) noexcept;
  TenantWatch(const TenantWatch&) = delete;
  TenantWatch& operator=(const TenantWatch&) = delete;
  ~TenantWatch();

  const TenantLine& line() const noexcept { return *line_; }
  const Process& process() const noexcept { return process_; }
  PartitionId partition() const noexcept { return partition_; }
  // True if this watch has killed the process because the tenant was late.
  bool was_killed() const noexcept { return was_killed_.load(); }
  // True if the tenant's process is gone and its slabs have returned.
  bool is_lost() const noexcept { return is_lost_.load() != 0; }
  // Waits until is_lost(), for at most `timeout_ns`.
  bool wait_lost(Nanoseconds timeout_ns) const noexcept;
  // Returns the first error of the watching thread; ok if it has had none.
  Status failure() const noexcept;

 private:
  TenantWatch(std::shared_ptr<Arbiter> arbiter, PartitionId partition,
              std::shared_ptr<TenantLine> line, Process process, EventFd stop,
              bool kills_late) noexcept;
  void run() noexcept;
  void keep(Status status) noexcept;

  const std::shared_ptr<Arbiter> arbiter_;
  const PartitionId partition_;
  const std::shared_ptr<TenantLine> line_;
  const Process process_;
  const EventFd stop_;
  const bool kills_late_;
  std::atomic<bool> was_killed_{false};
  std::atomic<std::uint32_t> is_lost_{0};  // a futex

  mutable std::mutex failures_;  // guards failure_
  Status failure_;

  const Owner owner_;
  OwnedThread thread_;  // last, because it uses all of the above
};

}  // namespace rose::memory
