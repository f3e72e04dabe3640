// The events and actions of the scheduler as classes of Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "scheduler/actions.h"
#include "scheduler/events.h"

namespace rose::bind {

void bind_events(pybind11::module_& module);
void bind_actions(pybind11::module_& module);

}  // namespace rose::bind
