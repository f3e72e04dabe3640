// Validation of a batch of events before any of them is applied.
#pragma once

#include <span>

#include "base/status.h"
#include "scheduler/book.h"
#include "scheduler/events.h"

namespace rose::scheduler {

// InvalidArgument for an event of the driver that contradicts its earlier events, in this batch or
// before, or that has invalid numbers. Events of workers are not checked, because EventRules
// tolerates all of them.
Status check(std::span<const Event> events, const Book& book);

}  // namespace rose::scheduler
