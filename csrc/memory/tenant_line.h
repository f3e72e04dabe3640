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
  EventFd to_arbiter;  // a closed slab has returned
  EventFd to_tenant;   // something was granted, closed or lost
  EventFd late;        // it missed a deadline, or delays serving repeatedly
};

}  // namespace rose::memory
