// Whether a batch of events can be applied, found out before any of it is.
#pragma once

#include <span>

#include "base/status.h"
#include "scheduler/book.h"
#include "scheduler/events.h"

namespace rose::scheduler {

// InvalidArgument for an event of the front that contradicts what it said before, in this batch or
// earlier, or that has numbers without a meaning. Events of workers are not looked at: whatever
// they say can be borne (see EventRules).
Status check(std::span<const Event> events, const Book& book);

}  // namespace rose::scheduler
