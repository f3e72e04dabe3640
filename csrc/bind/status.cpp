#include "bind/status.h"

namespace rose::bind {

namespace py = pybind11;

namespace {

const char* class_of(Code code) noexcept {
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

}  // namespace

void raise(const Status& status) {
  const py::object cls = py::module_::import("rose.errors").attr(class_of(status.code()));
  PyErr_SetString(cls.ptr(), status.message().c_str());
  throw py::error_already_set();
}

}  // namespace rose::bind
