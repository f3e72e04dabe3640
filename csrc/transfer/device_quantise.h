// Quantising on a GPU: the launcher of kernels/quantise.cu.
#pragma once

#include <memory>

#include "driver/kernel_library.h"
#include "kernels/quantise.h"

namespace rose::transfer {

// Only launches on the caller's stream, without device allocations, waits or copies. The caller
// keeps the memory until the stream has passed the launch. Any thread.
class DeviceQuantiser {
 public:
  // Loads the kernels of this build on the device. Unavailable if the build has none.
  static Result<std::shared_ptr<const DeviceQuantiser>> create(driver::DevicePtr device) noexcept;
  static Result<std::shared_ptr<const DeviceQuantiser>> create(
      std::shared_ptr<const driver::KernelLibrary> library) noexcept;

  // One CTA per scale block, or one warp per small block. Few blocks use few of them, so one scale
  // for a whole tensor is slow. InvalidArgument, naming the argument, for a null address or one
  // that is not aligned to its type, and for sizes that no matrix has; then nothing is launched.
  // Without weights: ok at once.
  Status quantise(const kernels::QuantiseParams& params, CUstream stream) const noexcept;

 private:
  DeviceQuantiser() noexcept = default;

  std::shared_ptr<const driver::KernelLibrary> library_;
  CUkernel by_cta_{nullptr};
  CUkernel by_warp_{nullptr};
  unsigned multiprocessors_{0};
};

}  // namespace rose::transfer
