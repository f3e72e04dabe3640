// A tenant in another process, as the arbiter's process holds it until the tenancy ends.
#pragma once

#include <memory>
#include <mutex>

#include "base/process.h"
#include "base/status.h"
#include "memory/arbiter.h"
#include "memory/tenant_watch.h"

namespace rose::coserving {

// Owns the tenant's watch until close(). Afterwards the tenant counts as gone: it is not alive, its
// report is empty, and ring() and evict() have no effect.
//
// Thread rule: any thread. The watch's thread is joined by close() or the destructor, or by a
// caller that still holds the watch then. No process is killed.
class Tenant {
 public:
  // Makes the process of `partition` a tenant, with `notify_at` as in RemoteHolder and `kills_late`
  // as in TenantWatch.
  static Result<std::unique_ptr<Tenant>> create(std::shared_ptr<memory::Arbiter> arbiter,
                                                memory::PartitionId partition,
                                                const Process& process, memory::Notify notify_at,
                                                bool kills_late);
  Tenant(const Tenant&) = delete;
  Tenant& operator=(const Tenant&) = delete;

  // Null after close().
  std::shared_ptr<const memory::TenantWatch> watch() const noexcept;
  memory::Arbiter& arbiter() const noexcept { return *arbiter_; }

  // Ends the watch. The tenant's slabs stay as they are.
  void close() noexcept;
  // Wakes the tenant, so that it looks at its mailbox.
  void ring() const noexcept;
  // Makes the watch kill the tenant's process, unless the watch must not kill. Does not wait.
  void evict() const noexcept;

  bool is_alive() const noexcept;
  memory::TenantReport report() const noexcept;

 private:
  Tenant(std::shared_ptr<memory::Arbiter> arbiter,
         std::unique_ptr<memory::TenantWatch> watch) noexcept;

  const std::shared_ptr<memory::Arbiter> arbiter_;
  mutable std::mutex mutex_;  // guards watch_
  std::shared_ptr<const memory::TenantWatch> watch_;
};

}  // namespace rose::coserving
