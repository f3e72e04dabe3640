// A gate word as a device sees it.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "compute/host_gate.h"
#include "driver/device.h"

namespace rose::compute {

// Owns the registration of one gate's page with one device, and keeps the gate alive. The device
// may use the addresses until this object is destroyed. So the owner of this object must not
// destroy it before the borrower's stream has passed the last gate.
class DeviceWord {
 public:
  // On error nothing is registered. A gate can be registered once in a process.
  static Result<std::unique_ptr<DeviceWord>> create(driver::DevicePtr device,
                                                    std::shared_ptr<HostGate> gate) noexcept;
  ~DeviceWord();
  DeviceWord(const DeviceWord&) = delete;
  DeviceWord& operator=(const DeviceWord&) = delete;

  // Leaks a word on which a device still waits: its registration and its page stay until the
  // process ends, because freeing memory in use would destroy the process's context. `code` keeps
  // rose's waiting kernels loaded, because unloading them could block.
  using Code = std::array<std::shared_ptr<const void>, 2>;
  static void abandon(std::unique_ptr<DeviceWord> word, Code code) noexcept {
    word->code_ = std::move(code);
    (void)word.release();
  }

  HostGate& gate() const noexcept { return *gate_; }
  // The half of `state` with the open bit and the drain bit.
  driver::DevicePointer state() const noexcept { return base_ + offsetof(GateWord, state); }
  driver::DevicePointer credit() const noexcept { return base_ + offsetof(GateWord, credit); }
  driver::DevicePointer passed() const noexcept { return base_ + offsetof(GateWord, passed); }
  driver::DevicePointer overdue() const noexcept { return base_ + offsetof(GateWord, overdue); }

 private:
  DeviceWord(driver::DevicePtr device, std::shared_ptr<HostGate> gate) noexcept
      : device_{std::move(device)}, gate_{std::move(gate)} {}

  driver::DevicePtr device_;
  std::shared_ptr<HostGate> gate_;
  driver::DevicePointer base_{0};
  bool is_registered_{false};
  Code code_;
};

}  // namespace rose::compute
