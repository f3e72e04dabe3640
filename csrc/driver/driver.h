// The CUDA driver, opened at run time: rose links neither libcuda nor libcudart.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "driver/entries.h"

namespace rose::driver {

// Owns the loaded library and its entry points. Immutable after open(), so any thread may use it.
//
// open() loads "libcuda.so.1", resolves every entry at its version with cuGetProcAddress, and calls
// cuInit. It uses no device and creates no context. The library is never unloaded, because the
// threads that it starts outlive a dlclose.
class Driver {
 public:
  // Unavailable if there is no library, the driver is too old (the message has both versions), a
  // required entry is missing (the message has its name), or cuInit fails.
  static Result<std::shared_ptr<const Driver>> open() noexcept;

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // 13000 is CUDA 13.0.
  int version() const noexcept { return version_; }
  const Entries& entries() const noexcept { return entries_; }

  // Converts the answer of `call` to a Status. A failure has the code OutOfMemory, InvalidArgument,
  // Unavailable or Internal, and a message such as
  // "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
  Status status(const char* call, Answer answer) const noexcept;
  // Returns Unavailable for a missing entry point; the message has the CUDA version that added it.
  static Status missing(const char* call) noexcept;

  Result<int> device_count() const noexcept;
  // True if the first launch of a kernel loads its code, which is the driver's default.
  Result<bool> loads_lazily() const noexcept;

 private:
  using GetProcAddress = Answer (*)(const char*, void**, int, std::uint64_t, int*);

  Driver() noexcept = default;
  Status load(GetProcAddress ask) noexcept;

  Entries entries_;
  int version_{0};
};

using DriverPtr = std::shared_ptr<const Driver>;

}  // namespace rose::driver

// Calls an entry point of `source` (a Driver) and returns its answer as a Status; Unavailable if an
// optional entry is missing.
#define ROSE_CU(source, call, ...)              \
  ((source).entries().call == nullptr           \
       ? ::rose::driver::Driver::missing(#call) \
       : (source).status(#call, (source).entries().call(__VA_ARGS__)))
