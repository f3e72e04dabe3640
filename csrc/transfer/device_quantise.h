// Quantising on a GPU: the launcher of kernels/quantise.cu.
#pragma once

#include <memory>

#include "driver/kernel_library.h"
#include "kernels/quantise.h"

namespace rose::transfer {

// Every call only launches a kernel on the caller's stream: it allocates no device memory, and does
// not wait or copy. The caller keeps the memory until the stream has passed the launch. Any thread
// may call any method.
class DeviceQuantiser {
 public:
  // Loads the kernels of this build on the device. Unavailable if the build has none.
  static Result<std::shared_ptr<const DeviceQuantiser>> create(driver::DevicePtr device) noexcept;
  static Result<std::shared_ptr<const DeviceQuantiser>> create(
      std::shared_ptr<const driver::KernelLibrary> library) noexcept;

  // Uses one CTA per scale block, or one warp per small scale block. One scale for a whole tensor
  // is slow, because it uses only one CTA. Returns InvalidArgument, and launches nothing, if an
  // address is null or not aligned to its type, or if no matrix can have these sizes. Returns ok,
  // and launches nothing, if there are no weights.
  Status quantise(const kernels::QuantiseParams& params, CUstream stream) const noexcept;

 private:
  DeviceQuantiser() noexcept = default;

  std::shared_ptr<const driver::KernelLibrary> library_;
  CUkernel by_cta_{nullptr};
  CUkernel by_warp_{nullptr};
  unsigned multiprocessors_{0};
};

}  // namespace rose::transfer
