// Helpers that call C++ code without the GIL: code that waits, and driver calls, which may wait for
// a lock that another thread holds.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "bind/status.h"

namespace rose::bind {

using gil_released = pybind11::call_guard<pybind11::gil_scoped_release>;

template <typename Call>
auto unlocked(Call&& call) {
  const pybind11::gil_scoped_release release;
  return call();
}

// Returns the value of the call's Result, or raises its error.
template <typename Call>
auto take_unlocked(Call&& call) {
  return take(unlocked(call));
}

template <typename Call>
void check_unlocked(Call&& call) {
  check(unlocked(call));
}

}  // namespace rose::bind
