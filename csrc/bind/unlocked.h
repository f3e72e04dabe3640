// Calls of C++ code without the GIL: code that waits, and driver calls, which may wait for a lock
// that another thread holds.
//
// Once the interpreter finalises, only its main thread can take the GIL. A thread that tries to
// take it parks for ever, until the process ends. CPython 3.14 parks it; CPython 3.10 to 3.13 ends
// it by unwinding its stack, which would end the process in the first noexcept function.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <utility>

#include "bind/status.h"

namespace rose::bind {

// Runs a call of CPython's C API that may take the GIL, and parks the thread if CPython ends it.
// The call must own no object with a destructor, because the destructor would run without the GIL.
template <typename Call>
auto or_park(const Call& call) noexcept {
  try {
    return call();
  } catch (...) {  // The C API throws nothing, so this is the unwinding.
    // Leaving this block would continue the unwinding. No check before the call could replace it:
    // the interpreter may begin to finalise while the call waits for the GIL.
    for (;;) ::pause();
  }
}

// Gives up the GIL for its scope. In bind, no other class of pybind11 or CPython may do so.
class GilReleased {
 public:
  GilReleased() noexcept : state_{PyEval_SaveThread()} {}
  ~GilReleased() {
    or_park([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  friend class GilRetaken;
  PyThreadState* state_;
};

// Takes the GIL back for its scope, within the scope of `released` and in the same thread.
class GilRetaken {
 public:
  explicit GilRetaken(GilReleased& released) noexcept : released_{released} {
    or_park([this] { PyEval_RestoreThread(released_.state_); });
  }
  ~GilRetaken() { released_.state_ = PyEval_SaveThread(); }
  GilRetaken(const GilRetaken&) = delete;
  GilRetaken& operator=(const GilRetaken&) = delete;

 private:
  GilReleased& released_;
};

using gil_released = pybind11::call_guard<GilReleased>;

template <typename Call>
auto unlocked(Call&& call) {
  const GilReleased released;
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

// A class whose C++ destructor runs without the GIL, because it joins a thread or calls the driver.
template <typename T, typename... Options>
class UnlockedClass : public pybind11::class_<T, Options...> {
 public:
  UnlockedClass(pybind11::handle scope, const char* name)
      : pybind11::class_<T, Options...>{scope, name} {
    auto* const type = reinterpret_cast<PyTypeObject*>(this->ptr());
    pybind11::detail::get_type_info(type)->dealloc = &destroy;
  }

 private:
  using Held = pybind11::detail::value_and_holder;
  using Holder = typename pybind11::class_<T, Options...>::holder_type;

  static void destroy(Held& held) {
    const pybind11::error_scope pending;  // a destructor must not lose the exception in flight
    const GilReleased released;
    if (held.holder_constructed()) {
      held.template holder<Holder>().~Holder();
      held.set_holder_constructed(false);
    } else {
      pybind11::detail::call_operator_delete(held.template value_ptr<T>(), sizeof(T), alignof(T));
    }
    held.value_ptr() = nullptr;
  }
};

}  // namespace rose::bind
