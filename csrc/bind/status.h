// The only conversion of a Status to a Python exception.
#pragma once

#include <pybind11/pybind11.h>

#include "base/status.h"

namespace rose::bind {

// Raises the class of rose.errors for the status code. Called with the GIL held.
[[noreturn]] void raise(const Status& status);

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

template <typename T>
T take(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return result.take();
}

}  // namespace rose::bind
