#include "driver/device.h"

#include <array>

namespace rose::driver {

namespace {

Result<DeviceOrdinal> handle_of(const Driver& driver, int ordinal) noexcept {
  const Result<int> count = driver.device_count();
  if (!count.ok()) return count.status();
  if (ordinal < 0 || ordinal >= count.value()) {
    return Status::invalid_argument("no CUDA device " + std::to_string(ordinal) +
                                    ": the driver reports " + std::to_string(count.value()) +
                                    " devices, counted from 0");
  }
  DeviceOrdinal handle = 0;
  ROSE_TRY(ROSE_CU(driver, cuDeviceGet, &handle, ordinal));
  return handle;
}

// Returns a UUID as CUDA_VISIBLE_DEVICES has it, without its prefix "GPU-" or "MIG-".
std::string text_of(const DeviceUuid& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<DeviceFacts> facts_of(const Driver& driver, DeviceOrdinal handle, int ordinal) noexcept {
  std::array<char, 256> name{};
  ROSE_TRY(ROSE_CU(driver, cuDeviceGetName, name.data(), static_cast<int>(name.size()), handle));
  DeviceFacts facts;
  facts.ordinal = ordinal;
  facts.name = name.data();
  DeviceUuid uuid{};
  ROSE_TRY(ROSE_CU(driver, cuDeviceGetUuid, &uuid, handle));
  facts.uuid = text_of(uuid);
  const auto attribute = [&](int which, int& out) noexcept {
    return ROSE_CU(driver, cuDeviceGetAttribute, &out, which, handle);
  };
  const auto predicate = [&](int which, bool& out) noexcept {
    int value = 0;
    ROSE_TRY(attribute(which, value));
    out = value != 0;
    return Status{};
  };
  ROSE_TRY(attribute(kAttributeComputeMajor, facts.compute_major));
  ROSE_TRY(attribute(kAttributeComputeMinor, facts.compute_minor));
  ROSE_TRY(attribute(kAttributeMultiprocessors, facts.multiprocessors));
  ROSE_TRY(attribute(kAttributeSharedBytesMax, facts.shared_bytes_max));
  int mps = 0;
  // Some drivers of CUDA 12 do not know this attribute.
  const Answer answer = driver.entries().cuDeviceGetAttribute(&mps, kAttributeMps, handle);
  if (answer != kInvalidValue) ROSE_TRY(driver.status("cuDeviceGetAttribute", answer));
  facts.uses_mps = mps != 0;
  ROSE_TRY(predicate(kAttributeVirtualMemory, facts.has_virtual_memory));
  ROSE_TRY(predicate(kAttributePosixFdHandles, facts.has_posix_fd_handles));
  ROSE_TRY(predicate(kAttributeStreamMemOps64, facts.has_stream_mem_ops_64));
  ROSE_TRY(predicate(kAttributeWaitValueNor, facts.has_wait_value_nor));
  return facts;
}

}  // namespace

Result<DeviceFacts> device_facts(const Driver& driver, int ordinal) noexcept {
  const Result<DeviceOrdinal> handle = handle_of(driver, ordinal);
  if (!handle.ok()) return handle.status();
  return facts_of(driver, handle.value(), ordinal);
}

Result<DevicePtr> Device::open(DriverPtr driver, int ordinal) noexcept {
  const Result<DeviceOrdinal> handle = handle_of(*driver, ordinal);
  if (!handle.ok()) return handle.status();
  Result<DeviceFacts> facts = facts_of(*driver, handle.value(), ordinal);
  if (!facts.ok()) return facts.status();
  CUcontext context = nullptr;
  ROSE_TRY(ROSE_CU(*driver, cuDevicePrimaryCtxRetain, &context, handle.value()));
  return DevicePtr{new Device{std::move(driver), facts.take(), handle.value(), context}};
}

Device::~Device() { driver_->entries().cuDevicePrimaryCtxRelease(handle_); }

Result<Device::PriorityRange> Device::priority_range() const noexcept {
  const Current current{*this};
  ROSE_TRY(current.status());
  PriorityRange range;
  ROSE_TRY(ROSE_CU(*driver_, cuCtxGetStreamPriorityRange, &range.lowest, &range.highest));
  return range;
}

Result<Device::MemoryInfo> Device::memory_info() const noexcept {
  const Current current{*this};
  ROSE_TRY(current.status());
  MemoryInfo info;
  ROSE_TRY(ROSE_CU(*driver_, cuMemGetInfo, &info.free_bytes, &info.total_bytes));
  return info;
}

Current::Current(const Device& device) noexcept
    : device_{device},
      status_{ROSE_CU(device.driver(), cuCtxPushCurrent, device.context())},
      capture_mode_{kCaptureRelaxed} {
  is_pushed_ = status_.ok();
  if (!is_pushed_) return;
  status_ = ROSE_CU(device.driver(), cuThreadExchangeStreamCaptureMode, &capture_mode_);
  is_relaxed_ = status_.ok();
}

Current::~Current() {
  const Entries& entries = device_.driver().entries();
  if (is_relaxed_) entries.cuThreadExchangeStreamCaptureMode(&capture_mode_);
  CUcontext popped = nullptr;
  if (is_pushed_) entries.cuCtxPopCurrent(&popped);
}

}  // namespace rose::driver
