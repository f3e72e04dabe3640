#include "driver/green_context.h"

#include <string>

namespace rose::driver {

namespace {

// The multiprocessors of the device, cut to one group of at least `wanted`.
Result<DeviceResource> share_of(const Device& device, unsigned wanted) noexcept {
  DeviceResource all{};
  ROSE_TRY(ROSE_CU(device.driver(), cuDeviceGetDevResource, device.handle(), &all, kResourceSm));
  if (wanted == 0 || wanted > all.sm.count) {
    return Status::invalid_argument("cannot take " + std::to_string(wanted) + " of " +
                                    std::to_string(all.sm.count) + " multiprocessors");
  }
  DeviceResource share{};
  unsigned groups = 1;
  ROSE_TRY(ROSE_CU(device.driver(), cuDevSmResourceSplitByCount, &share, &groups, &all, nullptr, 0,
                   wanted));
  if (groups != 1) {
    return Status::invalid_argument("the device cannot be split at " + std::to_string(wanted) +
                                    " of " + std::to_string(all.sm.count) + " multiprocessors");
  }
  return share;
}

}  // namespace

Result<std::shared_ptr<GreenContext>> GreenContext::create(DevicePtr device,
                                                           unsigned multiprocessors) noexcept {
  const Current current{*device};
  ROSE_TRY(current.status());
  Result<DeviceResource> share = share_of(*device, multiprocessors);
  if (!share.ok()) return share.status();
  const Driver& driver = device->driver();
  CUdevResourceDesc description = nullptr;
  ROSE_TRY(ROSE_CU(driver, cuDevResourceGenerateDesc, &description, &share.value(), 1));
  // Asked for before there is anything to undo.
  if (driver.entries().cuGreenCtxDestroy == nullptr) return Driver::missing("cuGreenCtxDestroy");
  CUgreenCtx context = nullptr;
  ROSE_TRY(ROSE_CU(driver, cuGreenCtxCreate, &context, description, device->handle(),
                   kGreenDefaultStream));
  return std::shared_ptr<GreenContext>{new GreenContext{device, context, share.value().sm.count}};
}

GreenContext::~GreenContext() {
  const Current current{*device_};
  device_->driver().entries().cuGreenCtxDestroy(context_);
}

Result<std::unique_ptr<Stream>> GreenContext::create_stream(Priority priority) noexcept {
  const Result<int> number = priority_number(*device_, priority);
  if (!number.ok()) return number.status();
  const Current current{*device_};
  ROSE_TRY(current.status());
  CUstream stream = nullptr;
  ROSE_TRY(ROSE_CU(device_->driver(), cuGreenCtxStreamCreate, &stream, context_, kStreamNonBlocking,
                   number.value()));
  return std::unique_ptr<Stream>{new Stream{device_, stream, shared_from_this()}};
}

}  // namespace rose::driver
