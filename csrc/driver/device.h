// One GPU: its facts, and its primary context, which rose shares with torch and all other users of
// the runtime.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "driver/driver.h"

namespace rose::driver {

// Properties of a device that need no context.
struct DeviceFacts {
  int ordinal{0};
  std::string name;
  std::string uuid;  // 32 hexadecimal digits with hyphens; of the MIG instance, if it is one
  int compute_major{0};
  int compute_minor{0};
  int multiprocessors{0};
  int shared_bytes_max{0};  // largest shared memory of a CTA
  bool uses_mps{false};     // this process is a client of the Multi-Process Service
  bool has_virtual_memory{false};
  bool has_posix_fd_handles{false};
  bool has_stream_mem_ops_64{false};
  bool has_wait_value_nor{false};
};

// InvalidArgument for an unknown ordinal.
Result<DeviceFacts> device_facts(const Driver& driver, int ordinal) noexcept;

// Retains the primary context during its lifetime. Any thread may use it; hold a Current during
// every driver call.
class Device {
 public:
  // InvalidArgument for an unknown ordinal; the message has the number of devices.
  static Result<std::shared_ptr<const Device>> open(DriverPtr driver, int ordinal) noexcept;
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const noexcept { return *driver_; }
  const DriverPtr& shared_driver() const noexcept { return driver_; }
  CUcontext context() const noexcept { return context_; }
  int ordinal() const noexcept { return facts_.ordinal; }
  DeviceOrdinal handle() const noexcept { return handle_; }
  const DeviceFacts& facts() const noexcept { return facts_; }

  struct PriorityRange {
    int lowest{0};   // 0, numerically the greatest value
    int highest{0};  // -5 on recent devices
  };
  Result<PriorityRange> priority_range() const noexcept;

  struct MemoryInfo {
    std::size_t free_bytes{0};
    std::size_t total_bytes{0};
  };
  Result<MemoryInfo> memory_info() const noexcept;

 private:
  Device(DriverPtr driver, DeviceFacts facts, DeviceOrdinal handle, CUcontext context) noexcept
      : driver_{std::move(driver)}, facts_{std::move(facts)}, handle_{handle}, context_{context} {}

  DriverPtr driver_;
  DeviceFacts facts_;
  DeviceOrdinal handle_;
  CUcontext context_;
};

using DevicePtr = std::shared_ptr<const Device>;

// Makes a device's context current in this thread during its lifetime, then restores the previous
// context. Check status() before the first call.
//
// It also sets the thread's capture mode to RELAXED. Another thread, such as serving's, may be
// capturing a stream in global mode. In any other mode than RELAXED, a query or an allocation in
// this thread would then fail, and would invalidate that capture.
class Current {
 public:
  explicit Current(const Device& device) noexcept;
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  const Status& status() const noexcept { return status_; }

 private:
  const Device& device_;
  Status status_;
  int capture_mode_;  // if is_relaxed_: the previous mode, to be restored
  bool is_pushed_{false};
  bool is_relaxed_{false};
};

}  // namespace rose::driver
