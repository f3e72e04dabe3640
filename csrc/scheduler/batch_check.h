// Validation of a batch of events before any of them is applied.
#pragma once

#include <span>

#include "base/status.h"
#include "scheduler/book.h"
#include "scheduler/events.h"

namespace rose::scheduler {

// Returns InvalidArgument if an event of the driver has invalid numbers, or contradicts an earlier
// event of the driver, in this batch or before. Events of workers are not checked, because
// EventRules tolerates all of them.
Status check(std::span<const Event> events, const Book& book);

}  // namespace rose::scheduler
