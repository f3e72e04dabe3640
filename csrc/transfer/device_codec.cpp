#include "transfer/device_codec.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <initializer_list>
#include <string>

namespace rose::transfer {

using driver::KernelLibrary;
using CodecPtr = std::shared_ptr<const DeviceCodec>;

namespace {

constexpr std::uint64_t kBlocksMax = (std::uint64_t{1} << 31) - 1;  // of a grid, along x
constexpr std::uint64_t kElementsOfLoad = 8;
// CTAs for each multiprocessor in a grid that goes round: enough to hide the latency of memory.
constexpr unsigned kCtasOfMultiprocessor = 8;

enum class Null { kRefused, kAllowed };

// An argument of a kernel.
struct Address {
  template <typename T>
  Address(const char* its_name, const T* its_place, Null its_null = Null::kRefused) noexcept
      : name{its_name},
        place{std::bit_cast<std::uint64_t>(its_place)},
        alignment{alignof(T)},
        null{its_null} {}

  const char* name;
  std::uint64_t place;
  std::size_t alignment;
  Null null;
};

// What may be null when there is nothing in it.
constexpr Null null_if_empty(std::uint64_t count) noexcept {
  return count == 0 ? Null::kAllowed : Null::kRefused;
}

Status check(std::initializer_list<Address> addresses) noexcept {
  for (const Address& one : addresses) {
    if (one.place == 0 && one.null == Null::kRefused) {
      return Status::invalid_argument(std::string{one.name} + " is null; give device memory");
    }
    if (one.place % one.alignment != 0) {
      char place[19];
      std::snprintf(place, sizeof place, "0x%llx", static_cast<unsigned long long>(one.place));
      return Status::invalid_argument(std::string{one.name} + " is at " + place +
                                      ", which is no multiple of " + std::to_string(one.alignment));
    }
  }
  return {};
}

Status check_first_index(std::uint64_t first_index) noexcept {
  if (first_index % kernels::kElementsOfDigestWord == 0) return {};
  return Status::invalid_argument("first_index is " + std::to_string(first_index) +
                                  "; split tensors at multiples of 4 elements");
}

std::uint64_t ceil_div(std::uint64_t count, std::uint64_t by) noexcept {
  return count / by + (count % by != 0 ? 1 : 0);
}

}  // namespace

Result<CodecPtr> DeviceCodec::create(driver::DevicePtr device) noexcept {
  Libraries libraries;
  const std::pair<const char*, std::shared_ptr<const KernelLibrary>*> places[]{
      {"delta_pack", &libraries.delta_pack}, {"delta_apply", &libraries.delta_apply},
      {"topk_pack", &libraries.topk_pack},   {"topk_unpack", &libraries.topk_unpack},
      {"digest", &libraries.digest},
  };
  for (const auto& [name, place] : places) {
    auto library = KernelLibrary::create(device, name);
    ROSE_TRY(library.status());
    *place = library.take();
  }
  return create(std::move(libraries));
}

Result<DeviceCodec::BlockKernels> DeviceCodec::block_kernels(const KernelLibrary& library,
                                                             const char* of_16ki,
                                                             const char* of_64ki) noexcept {
  const Result<CUkernel> small = library.kernel(of_16ki);
  ROSE_TRY(small.status());
  const Result<CUkernel> large = library.kernel(of_64ki);
  ROSE_TRY(large.status());
  return BlockKernels{small.value(), large.value()};
}

Result<CodecPtr> DeviceCodec::create(Libraries libraries) noexcept {
  const auto pack =
      block_kernels(*libraries.delta_pack, "delta_pack_16ki_kernel", "delta_pack_64ki_kernel");
  ROSE_TRY(pack.status());
  const auto apply =
      block_kernels(*libraries.delta_apply, "delta_apply_16ki_kernel", "delta_apply_64ki_kernel");
  ROSE_TRY(apply.status());
  const auto unpack =
      block_kernels(*libraries.topk_unpack, "topk_unpack_16ki_kernel", "topk_unpack_64ki_kernel");
  ROSE_TRY(unpack.status());
  const auto histogram = libraries.topk_pack->kernel("topk_histogram_kernel");
  ROSE_TRY(histogram.status());
  const auto threshold = libraries.topk_pack->kernel("topk_threshold_kernel");
  ROSE_TRY(threshold.status());
  const auto digest = libraries.digest->kernel("digest_kernel");
  ROSE_TRY(digest.status());

  const std::shared_ptr<DeviceCodec> codec{new DeviceCodec};
  codec->delta_pack_ = pack.value();
  codec->delta_apply_ = apply.value();
  codec->topk_unpack_ = unpack.value();
  codec->topk_histogram_ = histogram.value();
  codec->topk_threshold_ = threshold.value();
  codec->digest_ = digest.value();
  const int multiprocessors = libraries.digest->device()->facts().multiprocessors;
  codec->multiprocessors_ = static_cast<unsigned>(std::max(multiprocessors, 1));
  codec->libraries_ = std::move(libraries);
  return CodecPtr{codec};
}

template <typename Params>
Status DeviceCodec::launch_blocks(const KernelLibrary& library, const BlockKernels& kernels,
                                  const Params& params, std::uint32_t block_elements,
                                  CUstream stream) const noexcept {
  const bool is_small = block_elements == 16'384;
  if (!is_small && block_elements != 65'536) {
    return Status::invalid_argument("block_elements is " + std::to_string(block_elements) +
                                    "; delta blocks have 16384 or 65536 elements");
  }
  const std::uint64_t blocks = ceil_div(params.count, block_elements);
  if (blocks > kBlocksMax) {
    return Status::invalid_argument("count is " + std::to_string(params.count) + ", which is " +
                                    std::to_string(blocks) + " delta blocks; one launch takes " +
                                    std::to_string(kBlocksMax));
  }
  const driver::Grid grid{.blocks = static_cast<unsigned>(blocks),
                          .threads = block_elements / kernels::kElementsOfThread};
  return library.launch(is_small ? kernels.of_16ki : kernels.of_64ki, grid, stream, params);
}

driver::Grid DeviceCodec::persistent_grid(std::uint64_t count, unsigned threads,
                                          std::uint64_t least) const noexcept {
  const std::uint64_t needed = ceil_div(count, threads * kElementsOfLoad);
  const std::uint64_t busy = std::uint64_t{multiprocessors_} * kCtasOfMultiprocessor;
  const std::uint64_t blocks = std::max(std::min(needed, busy), least);
  return {.blocks = static_cast<unsigned>(std::min(blocks, kBlocksMax)), .threads = threads};
}

Status DeviceCodec::delta_pack(const kernels::DeltaPackParams& params, std::uint32_t block_elements,
                               CUstream stream) const noexcept {
  if (params.count == 0) return {};
  ROSE_TRY(check({{"bits", params.bits},
                  {"shadow", params.shadow},
                  {"threshold", params.threshold, Null::kAllowed},
                  {"arena", params.arena, null_if_empty(params.arena_words)},
                  {"cursor", params.cursor},
                  {"entries", params.entries},
                  {"offsets", params.offsets},
                  {"digest", params.digest, Null::kAllowed}}));
  ROSE_TRY(check_first_index(params.first_index));
  return launch_blocks(*libraries_.delta_pack, delta_pack_, params, block_elements, stream);
}

Status DeviceCodec::delta_apply(const kernels::DeltaApplyParams& params,
                                std::uint32_t block_elements, CUstream stream) const noexcept {
  if (params.count == 0) return {};
  ROSE_TRY(check({{"entries", params.entries},
                  {"offsets", params.offsets},
                  {"payload", params.payload, null_if_empty(params.payload_words)},
                  {"weights", params.weights},
                  {"bad_block", params.bad_block}}));
  return launch_blocks(*libraries_.delta_apply, delta_apply_, params, block_elements, stream);
}

Status DeviceCodec::topk_unpack(const kernels::TopkUnpackParams& params,
                                std::uint32_t block_elements, CUstream stream) const noexcept {
  if (params.count == 0) return {};
  ROSE_TRY(check({{"entries", params.entries},
                  {"offsets", params.offsets},
                  {"first_outputs", params.first_outputs},
                  {"payload", params.payload, null_if_empty(params.payload_words)},
                  {"base", params.base},
                  {"positions", params.positions, null_if_empty(params.output_count)},
                  {"values", params.values, null_if_empty(params.output_count)},
                  {"bad_block", params.bad_block}}));
  return launch_blocks(*libraries_.topk_unpack, topk_unpack_, params, block_elements, stream);
}

Status DeviceCodec::topk_histogram(const kernels::TopkHistogramParams& params,
                                   CUstream stream) const noexcept {
  if (params.count == 0) return {};
  ROSE_TRY(
      check({{"bits", params.bits}, {"shadow", params.shadow}, {"histogram", params.histogram}}));
  const std::uint64_t least = ceil_div(params.count, kernels::kHistogramElementsMax);
  if (least > kBlocksMax) {
    return Status::invalid_argument("count is " + std::to_string(params.count) +
                                    "; one launch counts less than 2^62 elements");
  }
  const driver::Grid grid = persistent_grid(params.count, kernels::kHistogramThreads, least);
  return libraries_.topk_pack->launch(topk_histogram_, grid, stream, params);
}

Status DeviceCodec::topk_threshold(const kernels::TopkThresholdParams& params,
                                   CUstream stream) const noexcept {
  ROSE_TRY(check({{"histogram", params.histogram}, {"threshold", params.threshold}}));
  const driver::Grid grid{.blocks = 1, .threads = kernels::kThresholdThreads};
  return libraries_.topk_pack->launch(topk_threshold_, grid, stream, params);
}

Status DeviceCodec::digest(const kernels::DigestParams& params, CUstream stream) const noexcept {
  if (params.count == 0) return {};
  ROSE_TRY(check({{"bits", params.bits}, {"sums", params.sums}}));
  ROSE_TRY(check_first_index(params.first_index));
  const driver::Grid grid = persistent_grid(params.count, kernels::kDigestThreads, 1);
  return libraries_.digest->launch(digest_, grid, stream, params);
}

}  // namespace rose::transfer
