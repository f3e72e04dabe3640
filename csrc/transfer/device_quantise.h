// Quantising on a GPU: the launcher of kernels/quantise.cu.
#pragma once

#include <memory>

#include "driver/kernel_library.h"
#include "kernels/quantise.h"

namespace rose::transfer {

// Launches on the caller's stream, and nothing else: no allocation on the device, no wait, no copy.
// Memory is the caller's until the stream has passed the launch. Any thread.
class DeviceQuantiser {
 public:
  // The kernels of this build, put on the device now. Unavailable when the build has none.
  static Result<std::shared_ptr<const DeviceQuantiser>> create(driver::DevicePtr device) noexcept;
  static Result<std::shared_ptr<const DeviceQuantiser>> create(
      std::shared_ptr<const driver::KernelLibrary> library) noexcept;

  // A CTA for each scale block, or a warp where they are small; few of them for few blocks, so one
  // scale for a whole tensor is slow. InvalidArgument, naming the argument, for an address that is
  // null or not aligned to its type, and for sizes that no matrix has; nothing is launched then. No
  // weights: ok at once.
  Status quantise(const kernels::QuantiseParams& params, CUstream stream) const noexcept;

 private:
  DeviceQuantiser() noexcept = default;

  std::shared_ptr<const driver::KernelLibrary> library_;
  CUkernel by_cta_{nullptr};
  CUkernel by_warp_{nullptr};
  unsigned multiprocessors_{0};
};

}  // namespace rose::transfer
