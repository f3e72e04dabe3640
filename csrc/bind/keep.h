// References to Python objects that threads without the GIL hold.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace rose::bind {

// The last reference to an object may be dropped by a thread that must not wait for the GIL. The
// object is then stored here, and released by the next call from Python.
class LaidAside {
 public:
  static std::shared_ptr<LaidAside> create() { return std::make_shared<LaidAside>(); }

  // Returns a reference to `object` that can be dropped on any thread. Called with the GIL held.
  static std::shared_ptr<void> keep(const std::shared_ptr<LaidAside>& aside,
                                    pybind11::object object) {
    return {object.release().ptr(),
            [aside](void* kept) { aside->lay(static_cast<PyObject*>(kept)); }};
  }

  // Releases the stored objects. Called with the GIL held.
  void drop() {
    std::vector<PyObject*> objects;
    {
      const std::scoped_lock lock{mutex_};
      objects.swap(objects_);
    }
    for (PyObject* const object : objects) Py_DECREF(object);
  }

 private:
  void lay(PyObject* object) {
    const std::scoped_lock lock{mutex_};
    objects_.push_back(object);
  }

  std::mutex mutex_;  // guards the objects; no Python runs under it
  std::vector<PyObject*> objects_;
};

}  // namespace rose::bind
