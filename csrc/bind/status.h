// The only conversion of a Status to a Python exception. Every extension has its own copy.
#pragma once

#include <pybind11/pybind11.h>

#include "base/status.h"

namespace rose::bind {

inline const char* error_class_of(Code code) noexcept {
  switch (code) {
    case Code::kInvalidArgument:
      return "InvalidArgument";
    case Code::kOutOfMemory:
      return "OutOfMemory";
    case Code::kUnavailable:
      return "Unavailable";
    case Code::kDeadlineExceeded:
      return "DeadlineExceeded";
    case Code::kCorrupt:
      return "CorruptData";
    case Code::kOk:
    case Code::kInternal:
      break;
  }
  return "InternalError";
}

// Raises the class of rose.errors for the status code. Called with the GIL held.
[[noreturn]] inline void raise(const Status& status) {
  namespace py = pybind11;
  const py::object cls = py::module_::import("rose.errors").attr(error_class_of(status.code()));
  PyErr_SetString(cls.ptr(), status.message().c_str());
  throw py::error_already_set();
}

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

template <typename T>
T take(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return result.take();
}

}  // namespace rose::bind
