#include "transfer/device_codec.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/ceil_div.h"
#include "driver/stream.h"

namespace rose::transfer {

using driver::KernelLibrary;
using CodecPtr = std::shared_ptr<const DeviceCodec>;

namespace {

constexpr std::uint64_t kElementsOfLoad = 8;
// CTAs per multiprocessor in a grid-stride launch: enough to hide the latency of memory.
constexpr unsigned kCtasOfMultiprocessor = 8;

enum class Null { kRefused, kAllowed };

// A pointer argument of a kernel, with the rules for its check.
struct Address {
  template <typename T>
  Address(const char* its_name, const T* its_place, Null its_null = Null::kRefused,
          std::uint64_t its_alignment = alignof(T)) noexcept
      : name{its_name},
        place{std::bit_cast<std::uint64_t>(its_place)},
        alignment{its_alignment},
        null{its_null} {}

  const char* name;
  std::uint64_t place;
  std::uint64_t alignment;
  Null null;
};

// An array may be null only if it is empty.
constexpr Null null_if_empty(std::uint64_t count) noexcept {
  return count == 0 ? Null::kAllowed : Null::kRefused;
}

Status check_addresses(std::initializer_list<Address> addresses) noexcept {
  for (const Address& one : addresses) {
    if (one.place == 0 && one.null == Null::kRefused) {
      return Status::invalid_argument(std::string{one.name} +
                                      " must not be null: pass device memory");
    }
    if (one.place % one.alignment != 0) {
      char place[19];
      std::snprintf(place, sizeof place, "0x%llx", static_cast<unsigned long long>(one.place));
      return Status::invalid_argument(std::string{one.name} + " is at " + place +
                                      ", which is not a multiple of " +
                                      std::to_string(one.alignment));
    }
  }
  return {};
}

Status check_width(std::uint64_t width) noexcept {
  if (width == 8 || width == 16 || width == 32) return {};
  return Status::invalid_argument("width is " + std::to_string(width) +
                                  ": it must be 8, 16 or 32 bits");
}

// `width` is already checked.
Status check_box(const char* name, const kernels::Box& box, std::uint64_t width,
                 Null null = Null::kRefused) noexcept {
  ROSE_TRY(check_addresses({{name, box.base, null, width / 8}}));
  if (box.base == nullptr) return {};
  for (const kernels::Divisor& size : box.sizes) {
    if (size.number == 0) {
      return Status::invalid_argument(std::string{name} +
                                      " has a dimension of size 0: sizes must be at least 1");
    }
  }
  return {};
}

// Keys of top-k exist for bf16 only.
Status check_keyed(bool is_keyed, std::uint64_t width) noexcept {
  if (!is_keyed || width == 16) return {};
  return Status::invalid_argument("width is " + std::to_string(width) +
                                  ": thresholds and ages need elements of 16 bits");
}

Status check_first_index(std::uint64_t first_index, std::uint64_t width) noexcept {
  const std::uint64_t in_word = kernels::kBitsOfDigestWord / width;
  if (first_index % in_word == 0) return {};
  return Status::invalid_argument("first_index is " + std::to_string(first_index) +
                                  ": split tensors at multiples of " + std::to_string(in_word) +
                                  " elements");
}

Status check_all_blocks(std::uint64_t count, std::uint64_t block_elements) noexcept {
  if (block_elements != 16'384 && block_elements != kernels::kBlockMax) {
    return Status::invalid_argument("block_elements is " + std::to_string(block_elements) +
                                    ": choose 16384 or 65536");
  }
  const std::uint64_t blocks = ceil_div(count, block_elements);
  if (blocks <= driver::kBlocksMax) return {};
  return Status::invalid_argument(
      "count is " + std::to_string(count) + ", which is " + std::to_string(blocks) +
      " delta blocks: one launch takes at most " + std::to_string(driver::kBlocksMax));
}

Status check_pack(const kernels::DeltaPackParams& params) noexcept {
  if (params.count == 0) return {};
  ROSE_TRY(check_width(params.width));
  ROSE_TRY(check_box("bits", params.bits, params.width));
  ROSE_TRY(check_box("shadow", params.shadow, params.width, Null::kAllowed));
  ROSE_TRY(check_keyed(params.threshold != nullptr || params.ages != nullptr, params.width));
  ROSE_TRY(check_addresses({{"threshold", params.threshold, Null::kAllowed},
                            {"arena", params.arena, null_if_empty(params.arena_words)},
                            {"newest", params.newest},
                            {"entries", params.entries},
                            {"offsets", params.offsets},
                            {"digest", params.digest, Null::kAllowed}}));
  ROSE_TRY(check_first_index(params.first_index, params.width));
  return check_all_blocks(params.count, params.block_elements);
}

Status check_apply(const kernels::ApplyArray& array, std::uint64_t block_elements,
                   const std::uint64_t* bad_block) noexcept {
  if (array.count == 0) return {};
  ROSE_TRY(check_width(array.width));
  ROSE_TRY(check_box("weights", array.weights, array.width));
  ROSE_TRY(check_addresses({{"entries", array.entries},
                            {"offsets", array.offsets},
                            {"payload", array.payload, null_if_empty(array.payload_words)},
                            {"digest", array.digest, Null::kAllowed},
                            {"bad_block", bad_block}}));
  return check_all_blocks(array.count, block_elements);
}

// True if two flat arrays can share a launch.
bool is_alike(const kernels::DeltaPackParams& one, const kernels::DeltaPackParams& other) noexcept {
  return one.block_elements == other.block_elements && one.threshold == other.threshold &&
         one.seed == other.seed;
}

// A CTA waits for the rows before its own, so a row that no CTA writes would block it for ever.
Status check_table(std::span<const kernels::DeltaPackParams> arrays) noexcept {
  const kernels::DeltaPackParams* first = nullptr;
  std::uint64_t blocks = 0;
  for (const kernels::DeltaPackParams& one : arrays) {
    if (one.count == 0) continue;
    if (first == nullptr) first = &one;
    if (one.arena != first->arena || one.arena_words != first->arena_words ||
        one.newest != first->newest || one.entries != first->entries + blocks ||
        one.offsets != first->offsets + blocks) {
      return Status::invalid_argument(
          "arrays that are packed together must share arena and newest, and their rows of entries "
          "and offsets must follow each other");
    }
    blocks += ceil_div(one.count, one.block_elements);
  }
  return {};
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

Result<CodecPtr> DeviceCodec::create(Libraries libraries) noexcept {
  const std::shared_ptr<DeviceCodec> codec{new DeviceCodec};
  const struct {
    const KernelLibrary& library;
    const char* name;
    CUkernel& place;
  } kernels[]{
      {*libraries.delta_pack, "delta_pack_kernel", codec->delta_pack_},
      {*libraries.delta_pack, "delta_pack_16k_kernel", codec->delta_pack_16k_},
      {*libraries.delta_pack, "delta_pack_flat_16k_kernel", codec->delta_pack_flat_16k_},
      {*libraries.delta_pack, "delta_pack_flat_64k_kernel", codec->delta_pack_flat_64k_},
      {*libraries.delta_apply, "delta_apply_kernel", codec->delta_apply_},
      {*libraries.delta_apply, "delta_apply_digest_kernel", codec->delta_apply_digest_},
      {*libraries.topk_unpack, "topk_unpack_kernel", codec->topk_unpack_},
      {*libraries.topk_pack, "topk_histogram_kernel", codec->topk_histogram_},
      {*libraries.topk_pack, "topk_threshold_kernel", codec->topk_threshold_},
      {*libraries.digest, "digest_kernel", codec->digest_},
  };
  for (const auto& [library, name, place] : kernels) {
    const Result<CUkernel> kernel = library.kernel(name);
    ROSE_TRY(kernel.status());
    place = kernel.value();
  }
  const int multiprocessors = libraries.digest->device()->facts().multiprocessors;
  codec->multiprocessors_ = static_cast<unsigned>(std::max(multiprocessors, 1));
  codec->libraries_ = std::move(libraries);
  return CodecPtr{codec};
}

template <typename Params>
Status DeviceCodec::launch_blocks(const KernelLibrary& library, CUkernel kernel,
                                  const Params& params, std::uint64_t threads,
                                  CUstream stream) const noexcept {
  ROSE_TRY(check_all_blocks(params.count, params.block_elements));
  const driver::Grid grid{
      .blocks = static_cast<unsigned>(ceil_div(params.count, params.block_elements)),
      .threads = static_cast<unsigned>(threads)};
  return library.launch(kernel, grid, stream, params);
}

driver::Grid DeviceCodec::persistent_grid(std::uint64_t count, unsigned threads,
                                          std::uint64_t least) const noexcept {
  const std::uint64_t needed = ceil_div(count, threads * kElementsOfLoad);
  const std::uint64_t busy = std::uint64_t{multiprocessors_} * kCtasOfMultiprocessor;
  const std::uint64_t blocks = std::max(std::min(needed, busy), least);
  return {.blocks = static_cast<unsigned>(std::min(blocks, driver::kBlocksMax)),
          .threads = threads};
}

Status DeviceCodec::launch_flat(const kernels::DeltaPackFlatParams& params,
                                std::uint64_t block_elements, std::uint64_t blocks,
                                CUstream stream) const noexcept {
  const bool is_64k = block_elements == kernels::kBlockMax;
  const driver::Grid grid{
      .blocks = static_cast<unsigned>(blocks),
      .threads = static_cast<unsigned>(block_elements / kernels::kElementsOfThread)};
  return libraries_.delta_pack->launch(is_64k ? delta_pack_flat_64k_ : delta_pack_flat_16k_, grid,
                                       stream, params);
}

Status DeviceCodec::delta_pack(std::span<const kernels::DeltaPackParams> arrays,
                               CUstream stream) const noexcept {
  for (const kernels::DeltaPackParams& one : arrays) ROSE_TRY(check_pack(one));
  ROSE_TRY(check_table(arrays));
  // A replay would find the table and the counter of blocks as the first launch left them.
  const Result<bool> captures = driver::is_capturing(*libraries_.delta_pack->device(), stream);
  if (captures.ok() && captures.value()) {
    return Status::invalid_argument(
        "delta_pack cannot be captured into a graph, because a replay would not reset its table");
  }
  kernels::DeltaPackFlatParams flat{};
  const kernels::DeltaPackParams* first = nullptr;  // first array in `flat`
  std::uint64_t blocks = 0;                         // delta blocks of the arrays in `flat`
  std::uint64_t done = 0;                           // delta blocks of all arrays so far
  const auto launch = [&]() noexcept -> Status {
    if (first == nullptr) return {};
    const std::uint64_t elements = std::exchange(first, nullptr)->block_elements;
    return launch_flat(flat, elements, blocks, stream);
  };
  for (const kernels::DeltaPackParams& one : arrays) {
    if (one.count == 0) continue;
    const std::uint64_t more = ceil_div(one.count, one.block_elements);
    const std::uint64_t first_block = std::exchange(done, done + more);
    if (!kernels::is_flat(one)) {
      ROSE_TRY(launch());  // the flat arrays before this one
      kernels::DeltaPackParams params = one;
      params.first_block = first_block;
      const bool is_64k = one.block_elements == kernels::kBlockMax;
      ROSE_TRY(launch_blocks(*libraries_.delta_pack, is_64k ? delta_pack_ : delta_pack_16k_, params,
                             one.block_elements / kernels::kElementsOfThread, stream));
      continue;
    }
    if (first != nullptr && (!is_alike(*first, one) || flat.arrays == kernels::kFlatArraysMax ||
                             blocks + more > driver::kBlocksMax)) {
      ROSE_TRY(launch());
    }
    if (first == nullptr) {
      first = &one;
      blocks = 0;
      flat = {.arrays = 0,
              .threshold = one.threshold,
              .arena = one.arena,
              .arena_words = one.arena_words,
              .newest = one.newest,
              .first_block = first_block,
              .seed = one.seed,
              .at = {}};
    }
    flat.at[flat.arrays++] = {.bits = reinterpret_cast<const kernels::u16*>(one.bits.base),
                              .shadow = reinterpret_cast<kernels::u16*>(one.shadow.base),
                              .count = one.count,
                              .first_cta = blocks,
                              .entries = one.entries,
                              .offsets = one.offsets,
                              .digest = one.digest,
                              .first_index = one.first_index};
    blocks += more;
  }
  return launch();
}

Status DeviceCodec::delta_apply(const Apply& apply, CUstream stream) const noexcept {
  const auto& [arrays, block_elements, bad_block, is_undo] = apply;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    ROSE_TRY(check_apply(arrays[i], block_elements[i], bad_block));
  }
  kernels::DeltaApplyParams params{};
  std::uint64_t blocks = 0;
  const auto launch = [&]() noexcept -> Status {
    if (params.arrays == 0) return {};
    const driver::Grid grid{
        .blocks = static_cast<unsigned>(blocks),
        .threads = static_cast<unsigned>(kernels::threads_to_read(params.block_elements))};
    const CUkernel kernel = params.at[0].digest == nullptr ? delta_apply_ : delta_apply_digest_;
    ROSE_TRY(libraries_.delta_apply->launch(kernel, grid, stream, params));
    params.arrays = 0;
    return {};
  };
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const kernels::ApplyArray& one = arrays[i];
    if (one.count == 0) continue;
    const std::uint64_t more = ceil_div(one.count, block_elements[i]);
    const bool is_alike = params.block_elements == block_elements[i] &&
                          (params.at[0].digest == nullptr) == (one.digest == nullptr);
    if (!is_alike || params.arrays == kernels::kApplyArraysMax ||
        blocks + more > driver::kBlocksMax) {
      ROSE_TRY(launch());
    }
    if (params.arrays == 0) {
      blocks = 0;
      params = {.arrays = 0,
                .block_elements = block_elements[i],
                .bad_block = bad_block,
                .is_undo = is_undo ? 1U : 0U,
                .at = {}};
    }
    kernels::ApplyArray& row = params.at[params.arrays++];
    row = one;
    row.first_cta = blocks;
    blocks += more;
  }
  return launch();
}

Status DeviceCodec::topk_unpack(const kernels::TopkUnpackParams& params,
                                CUstream stream) const noexcept {
  if (params.count == 0) return {};
  ROSE_TRY(check_width(params.width));
  ROSE_TRY(check_box("base", params.base, params.width));
  const Null if_none = null_if_empty(params.output_count);
  ROSE_TRY(check_addresses({{"entries", params.entries},
                            {"offsets", params.offsets},
                            {"first_outputs", params.first_outputs},
                            {"payload", params.payload, null_if_empty(params.payload_words)},
                            {"positions", params.positions, if_none},
                            {"values", params.values, if_none, params.width / 8},
                            {"bad_block", params.bad_block}}));
  return launch_blocks(*libraries_.topk_unpack, topk_unpack_, params,
                       kernels::threads_to_read(params.block_elements), stream);
}

Status DeviceCodec::topk_histogram(const kernels::TopkHistogramParams& params,
                                   CUstream stream) const noexcept {
  if (params.count == 0) return {};
  ROSE_TRY(check_box("bits", params.bits, 16));
  ROSE_TRY(check_box("shadow", params.shadow, 16));
  ROSE_TRY(check_addresses({{"histogram", params.histogram}}));
  const std::uint64_t least = ceil_div(params.count, kernels::kHistogramElementsMax);
  if (least > driver::kBlocksMax) {
    return Status::invalid_argument("count is " + std::to_string(params.count) +
                                    ": one launch takes fewer than 2^62 elements");
  }
  const driver::Grid grid = persistent_grid(params.count, kernels::kHistogramThreads, least);
  return libraries_.topk_pack->launch(topk_histogram_, grid, stream, params);
}

Status DeviceCodec::topk_threshold(const kernels::TopkThresholdParams& params,
                                   CUstream stream) const noexcept {
  ROSE_TRY(check_addresses({{"histogram", params.histogram}, {"threshold", params.threshold}}));
  const driver::Grid grid{.blocks = 1, .threads = kernels::kThresholdThreads};
  return libraries_.topk_pack->launch(topk_threshold_, grid, stream, params);
}

Status DeviceCodec::digest(const kernels::DigestParams& params, CUstream stream) const noexcept {
  if (params.count == 0) return {};
  ROSE_TRY(check_width(params.width));
  ROSE_TRY(check_box("bits", params.bits, params.width));
  ROSE_TRY(check_addresses({{"sums", params.sums}}));
  ROSE_TRY(check_first_index(params.first_index, params.width));
  const driver::Grid grid = persistent_grid(params.count, kernels::kDigestThreads, 1);
  return libraries_.digest->launch(digest_, grid, stream, params);
}

}  // namespace rose::transfer
