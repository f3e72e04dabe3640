// The delta codec on a GPU: the launchers of kernels/*.cu. docs/protocol.md has the format.
#pragma once

#include <cstdint>
#include <memory>

#include "driver/kernel_library.h"
#include "kernels/delta_apply.h"
#include "kernels/delta_pack.h"
#include "kernels/digest.h"
#include "kernels/topk_pack.h"
#include "kernels/topk_unpack.h"

namespace rose::transfer {

// Launches on the caller's stream, and nothing else: no allocation on the device, no wait, no copy.
// What a launch needs to find zero or ~0 the caller has set there. Memory is the caller's until the
// stream has passed the launch. Any thread.
//
// Every launch: InvalidArgument, naming the argument, for an address that is null or not aligned to
// its elements, for widths and blocks that the format does not know, and for sizes that no grid
// has; nothing is launched then. No elements: ok at once.
class DeviceCodec {
 public:
  struct Libraries {
    std::shared_ptr<const driver::KernelLibrary> delta_pack;
    std::shared_ptr<const driver::KernelLibrary> delta_apply;
    std::shared_ptr<const driver::KernelLibrary> topk_pack;
    std::shared_ptr<const driver::KernelLibrary> topk_unpack;
    std::shared_ptr<const driver::KernelLibrary> digest;
  };

  // The kernels of this build, all put on the device now. Unavailable when the build has none.
  static Result<std::shared_ptr<const DeviceCodec>> create(driver::DevicePtr device) noexcept;
  static Result<std::shared_ptr<const DeviceCodec>> create(Libraries libraries) noexcept;

  Status delta_pack(const kernels::DeltaPackParams& params, CUstream stream) const noexcept;
  Status delta_apply(const kernels::DeltaApplyParams& params, CUstream stream) const noexcept;
  Status topk_unpack(const kernels::TopkUnpackParams& params, CUstream stream) const noexcept;
  Status topk_histogram(const kernels::TopkHistogramParams& params, CUstream stream) const noexcept;
  Status topk_threshold(const kernels::TopkThresholdParams& params, CUstream stream) const noexcept;
  Status digest(const kernels::DigestParams& params, CUstream stream) const noexcept;

 private:
  DeviceCodec() noexcept = default;
  // A CTA for each delta block of `params`.
  template <typename Params>
  Status launch_blocks(const driver::KernelLibrary& library, CUkernel kernel, const Params& params,
                       CUstream stream) const noexcept;
  // CTAs of `threads` threads with eight elements each for `count` elements, but only as many as
  // keep the device busy, and no fewer than `least`.
  driver::Grid persistent_grid(std::uint64_t count, unsigned threads,
                               std::uint64_t least) const noexcept;

  Libraries libraries_;
  CUkernel delta_pack_{nullptr};
  CUkernel delta_apply_{nullptr};
  CUkernel topk_unpack_{nullptr};
  CUkernel topk_histogram_{nullptr};
  CUkernel topk_threshold_{nullptr};
  CUkernel digest_{nullptr};
  unsigned multiprocessors_{0};
};

}  // namespace rose::transfer
