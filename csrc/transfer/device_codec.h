// The delta codec on a GPU: the launchers of kernels/*.cu. docs/protocol.md has the format.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "driver/kernel_library.h"
#include "kernels/delta_apply.h"
#include "kernels/delta_pack.h"
#include "kernels/digest.h"
#include "kernels/topk_pack.h"
#include "kernels/topk_unpack.h"

namespace rose::transfer {

// Every call only launches kernels on the caller's stream: it allocates no device memory, and does
// not wait or copy. The caller sets memory to zero or ~0 where a launch needs that, and keeps the
// memory until the stream has passed the launch. Any thread may call any method.
//
// Every call returns InvalidArgument, with the name of the argument, and launches nothing, if
//   - an address is null or not aligned to its elements,
//   - a width or a block size is not in the format,
//   - or a size needs more CTAs than a launch can have.
// A call without elements returns ok and launches nothing.
class DeviceCodec {
 public:
  struct Libraries {
    std::shared_ptr<const driver::KernelLibrary> delta_pack;
    std::shared_ptr<const driver::KernelLibrary> delta_apply;
    std::shared_ptr<const driver::KernelLibrary> topk_pack;
    std::shared_ptr<const driver::KernelLibrary> topk_unpack;
    std::shared_ptr<const driver::KernelLibrary> digest;
  };

  // Loads the kernels of this build on the device. Unavailable if the build has none.
  static Result<std::shared_ptr<const DeviceCodec>> create(driver::DevicePtr device) noexcept;
  static Result<std::shared_ptr<const DeviceCodec>> create(Libraries libraries) noexcept;

  // Packs several arrays into one arena and one table, with the rows that kernels/delta_pack.h asks
  // for; `first_block` is ignored. Flat arrays (kernels::is_flat) that follow each other and have
  // the same block size, threshold and seed share a launch, up to kFlatArraysMax of them. All are
  // checked before the first launch.
  Status delta_pack(std::span<const kernels::DeltaPackParams> arrays,
                    CUstream stream) const noexcept;
  // Applies deltas to several arrays, or undoes them. Consecutive arrays share a launch, up to
  // kApplyArraysMax of them, if they have the same block size and all or none have a digest. All
  // arrays are checked before the first launch.
  struct Apply {
    std::span<const kernels::ApplyArray> arrays;    // `first_cta` is ignored
    std::span<const std::uint64_t> block_elements;  // block size of each array
    std::uint64_t* bad_block;
    bool is_undo;
  };
  Status delta_apply(const Apply& apply, CUstream stream) const noexcept;
  Status topk_unpack(const kernels::TopkUnpackParams& params, CUstream stream) const noexcept;
  Status topk_histogram(const kernels::TopkHistogramParams& params, CUstream stream) const noexcept;
  Status topk_threshold(const kernels::TopkThresholdParams& params, CUstream stream) const noexcept;
  Status digest(const kernels::DigestParams& params, CUstream stream) const noexcept;

 private:
  DeviceCodec() noexcept = default;
  Status launch_flat(const kernels::DeltaPackFlatParams& params, std::uint64_t block_elements,
                     std::uint64_t blocks, CUstream stream) const noexcept;
  // Launches one CTA of `threads` threads per delta block of `params`.
  template <typename Params>
  Status launch_blocks(const driver::KernelLibrary& library, CUkernel kernel, const Params& params,
                       std::uint64_t threads, CUstream stream) const noexcept;
  // Returns a grid of CTAs with `threads` threads: a thread per eight of the `count` elements, but
  // no more CTAs than keep the device busy, and at least `least` CTAs.
  driver::Grid persistent_grid(std::uint64_t count, unsigned threads,
                               std::uint64_t least) const noexcept;

  Libraries libraries_;
  CUkernel delta_pack_{nullptr};
  CUkernel delta_pack_16k_{nullptr};
  CUkernel delta_pack_flat_16k_{nullptr};
  CUkernel delta_pack_flat_64k_{nullptr};
  CUkernel delta_apply_{nullptr};
  CUkernel delta_apply_digest_{nullptr};
  CUkernel topk_unpack_{nullptr};
  CUkernel topk_histogram_{nullptr};
  CUkernel topk_threshold_{nullptr};
  CUkernel digest_{nullptr};
  unsigned multiprocessors_{0};
};

}  // namespace rose::transfer
