// The state shared by an arbiter and the watch of one tenant.
#pragma once

#include "base/process.h"
#include "memory/mailbox.h"

namespace rose::memory {

// The mailbox and the bells of a tenant in another process. The first two bells are shared with the
// tenant; the third stays in the arbiter's process.
//
// Thread rule: any thread.
struct TenantLine {
  static Result<std::shared_ptr<TenantLine>> create(Mailbox mailbox) noexcept;

  Mailbox mailbox;
  EventFd to_arbiter;  // the tenant returned a slab
  EventFd to_tenant;   // the arbiter granted, closed or quarantined a slab
  EventFd late;        // the tenant missed a deadline, or delays serving repeatedly
};

}  // namespace rose::memory
