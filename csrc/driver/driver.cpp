#include "driver/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <string_view>

namespace rose::driver {

namespace {

constexpr const char* kLibrary = "libcuda.so.1";

struct Known {
  std::string_view name;
  int version;
  Need need;
};

constexpr Known kTable[] = {
#define ROSE_CUDA_ROW(name, version, need, arguments) {#name, version, Need::need},
    ROSE_CUDA_ENTRIES(ROSE_CUDA_ROW)
#undef ROSE_CUDA_ROW
};

constexpr int oldest_driver() noexcept {
  int version = 0;
  for (const Known& entry : kTable) {
    if (entry.need == Need::kRequired) version = std::max(version, entry.version);
  }
  return version;
}

std::string shown(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Status too_old(int version) {
  return Status::unavailable("the CUDA driver supports CUDA " + shown(version) +
                             ", and rose needs " + shown(oldest_driver()) +
                             " or later: update the driver");
}

// A driver without cuGetProcAddress_v2 can still report its version.
Status without_proc_address(void* library) {
  int version = 0;
  const auto ask = reinterpret_cast<Answer (*)(int*)>(::dlsym(library, "cuDriverGetVersion"));
  if (ask != nullptr && ask(&version) == kSuccess) return too_old(version);
  return Status::unavailable(std::string{kLibrary} +
                             " has no cuGetProcAddress_v2: it is not a driver of CUDA " +
                             shown(oldest_driver()) + " or later");
}

Code code_of(Answer answer) noexcept {
  switch (answer) {
    case kSuccess:
      return Code::kOk;
    case kOutOfMemory:
      return Code::kOutOfMemory;
    case kInvalidValue:
    case kInvalidDevice:
    case kNotFound:
      return Code::kInvalidArgument;
    case kInvalidContext:
    case kInvalidHandle:
      // rose makes contexts current and owns handles, so this is a bug of rose.
      return Code::kInternal;
    default:
      return Code::kUnavailable;
  }
}

}  // namespace

Result<DriverPtr> Driver::open() noexcept {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status::unavailable(std::string{"no CUDA driver: "} + ::dlerror());
  }
  const auto ask = reinterpret_cast<GetProcAddress>(::dlsym(library, "cuGetProcAddress_v2"));
  if (ask == nullptr) return without_proc_address(library);
  const std::shared_ptr<Driver> driver{new Driver};
  ROSE_TRY(driver->load(ask));
  const Status started = ROSE_CU(*driver, cuInit, 0);
  if (!started.ok()) return Status::unavailable(started.message());
  return DriverPtr{driver};
}

Status Driver::load(GetProcAddress ask) noexcept {
  const auto find = [ask](const char* name, int version) noexcept {
    void* found = nullptr;
    int why_not = 0;
    // Flags of 0 select the functions for which stream 0 is the legacy default stream, as it is for
    // the other libraries in the process.
    if (ask(name, &found, version, 0, &why_not) != kSuccess || why_not != 0) found = nullptr;
    return found;
  };
  entries_.cuDriverGetVersion =
      reinterpret_cast<decltype(entries_.cuDriverGetVersion)>(find("cuDriverGetVersion", 2020));
  ROSE_TRY(ROSE_CU(*this, cuDriverGetVersion, &version_));
  if (version_ < oldest_driver()) return too_old(version_);

  // For a version newer than its own the driver returns an error, not an older function.
#define ROSE_CUDA_LOAD(name, version, need, arguments)                             \
  entries_.name = reinterpret_cast<decltype(entries_.name)>(find(#name, version)); \
  if (entries_.name == nullptr && Need::need == Need::kRequired) {                 \
    return Status::unavailable("the CUDA driver (CUDA " + shown(version_) +        \
                               ") has no " #name " of CUDA " + shown(version) +    \
                               ", which rose needs");                              \
  }
  ROSE_CUDA_ENTRIES(ROSE_CUDA_LOAD)
#undef ROSE_CUDA_LOAD
  return {};
}

Status Driver::status(const char* call, Answer answer) const noexcept {
  if (answer == kSuccess) return {};
  std::string message = call;
  const char* text = nullptr;
  if (entries_.cuGetErrorName != nullptr && entries_.cuGetErrorName(answer, &text) == kSuccess &&
      text != nullptr) {
    message += std::string{": "} + text + " (" + std::to_string(answer) + ")";
  } else {
    message += ": error " + std::to_string(answer);
  }
  if (entries_.cuGetErrorString != nullptr &&
      entries_.cuGetErrorString(answer, &text) == kSuccess && text != nullptr) {
    message += std::string{": "} + text;
  }
  return {code_of(answer), std::move(message)};
}

Status Driver::missing(const char* call) noexcept {
  std::string message = std::string{"the CUDA driver has no "} + call;
  for (const Known& entry : kTable) {
    if (entry.name != call) continue;
    message += ", which came with CUDA " + shown(entry.version) + ": update the driver";
  }
  return Status::unavailable(std::move(message));
}

Result<int> Driver::device_count() const noexcept {
  int count = 0;
  ROSE_TRY(ROSE_CU(*this, cuDeviceGetCount, &count));
  return count;
}

Result<bool> Driver::loads_lazily() const noexcept {
  int mode = 0;
  ROSE_TRY(ROSE_CU(*this, cuModuleGetLoadingMode, &mode));
  return mode != kModulesEager;
}

}  // namespace rose::driver
