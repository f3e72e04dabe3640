// The launchers of the delta codec: arguments of the driver calls, and refusals before them.
#include "transfer/device_codec.h"

#include <bit>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "base/ceil_div.h"
#include "check.h"
#include "driver/fixture.h"
#include "driver/stream.h"
#include "transfer/device_box.h"

using namespace rose;
using namespace rose::driver;
using namespace rose::test;
using namespace rose::kernels;
using transfer::device_box;
using transfer::DeviceCodec;
using transfer::DeviceShape;

namespace {

using CodecPtr = std::shared_ptr<const DeviceCodec>;

Result<CodecPtr> create_codec(const DevicePtr& device) {
  DeviceCodec::Libraries libraries;
  for (const auto place : {&libraries.delta_pack, &libraries.delta_apply, &libraries.topk_pack,
                           &libraries.topk_unpack, &libraries.digest}) {
    auto library = KernelLibrary::create(device, Fatbin{"of the codec", kCode});
    ROSE_TRY(library.status());
    *place = library.take();
  }
  return DeviceCodec::create(std::move(libraries));
}

// A codec, a stream, and the last launch as text.
struct Bench {
  DevicePtr device{open_device()};
  CodecPtr codec{create_codec(device).take()};
  std::unique_ptr<Stream> stream{Stream::create(device, StreamPriority::kLowest).take()};

  Bench() {
    declare("delta_pack", sizeof(DeltaPackParams));
    declare("delta_pack_16k", sizeof(DeltaPackParams));
    declare("delta_pack_flat_16k", sizeof(DeltaPackFlatParams));
    declare("delta_pack_flat_64k", sizeof(DeltaPackFlatParams));
    declare("delta_apply", sizeof(DeltaApplyParams));
    declare("delta_apply_digest", sizeof(DeltaApplyParams));
    declare("topk_unpack", sizeof(TopkUnpackParams));
    declare("topk_histogram", sizeof(TopkHistogramParams));
    declare("topk_threshold", sizeof(TopkThresholdParams));
    declare("digest", sizeof(DigestParams));
  }

  // Launches since the last call, without the stream: "kernel grid block shared arguments".
  std::string launched() {
    const std::string all = fake().kernels();
    std::string text = all.substr(seen);
    seen = all.size();
    const std::string mine = " stream " + name_of_stream();
    const std::size_t at = text.find(mine);
    return at == std::string::npos ? text : text.erase(at, mine.size());
  }

 private:
  static void declare(const std::string& kernel, std::size_t bytes) {
    fake().arguments((kernel + "_kernel").c_str(), std::to_string(bytes).c_str());
  }
  std::string name_of_stream() const {
    char text[32];
    std::snprintf(text, sizeof text, "%p", static_cast<void*>(stream->get()));
    return text;
  }

  std::size_t seen{0};
};

template <typename T>
T* at(std::uint64_t address) {
  return std::bit_cast<T*>(address);
}

// A row of 0x10001 elements.
Box row_at(std::uint64_t address) { return device_box(at<u8>(address), DeviceShape::row(0x10001)); }
// The same row as text: address, the sizes of three dimensions with their divisors, and four
// strides.
std::string row_text(const std::string& address) {
  return address + " 0x1 0x0 0x0 0x1 0x0 0x0 0x10001 0xffff0000ffff0001 0x10 0x0 0x0 0x0 0x1 ";
}

DeltaPackParams pack_params() {
  return {.bits = row_at(0x1002),
          .shadow = row_at(0x2002),
          .width = 16,
          .count = 65'537,
          .block_elements = 65'536,
          .threshold = at<u32>(0x3004),
          .ages = at<u8>(0x3301),
          .age_limit = 0x33,
          .arena = at<u32>(0x4004),
          .arena_words = 0x55,
          .newest = at<u64>(0x5008),
          .first_block = 0,
          .entries = at<u64>(0x6008),
          .offsets = at<u64>(0x7008),
          .digest = at<u64>(0x8008),
          .first_index = 12,
          .seed = 0x9999};
}

// The arguments of one array; the codec takes several.
struct ApplyCall : ApplyArray {
  u64 block_elements;
  u64* bad_block;
  bool is_undo;
};

// `count` more arguments that are 0.
std::string zeros(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += " 0x0";
  return text;
}

ApplyCall apply_params() {
  return {{.entries = at<u64>(0x1008),
           .offsets = at<u64>(0x2008),
           .payload = at<u32>(0x3004),
           .payload_words = 0x44,
           .weights = row_at(0x4002),
           .width = 16,
           .count = 16'384,
           .first_cta = 0,
           .digest = nullptr},
          16'384,
          at<u64>(0x5008),
          true};
}

TopkUnpackParams unpack_params() {
  return {.entries = at<u64>(0x1008),
          .offsets = at<u64>(0x2008),
          .first_outputs = at<u64>(0x3008),
          .payload = at<u32>(0x4004),
          .payload_words = 0x44,
          .base = row_at(0x5002),
          .width = 16,
          .count = 16'385,
          .block_elements = 16'384,
          .positions = at<std::int64_t>(0x6008),
          .values = at<u8>(0x7002),
          .output_count = 0x77,
          .bad_block = at<u64>(0x8008)};
}

TopkHistogramParams histogram_params() {
  return {.bits = row_at(0x1002),
          .shadow = row_at(0x2002),
          .count = 4'097,
          .ages = at<u8>(0x2201),
          .age_limit = 0x22,
          .histogram = at<u64>(0x3008)};
}

DigestParams digest_params() {
  return {.bits = row_at(0x1002),
          .width = 16,
          .count = 2'049,
          .first_index = 8,
          .seed = 0x22,
          .sums = at<u64>(0x3008)};
}

// The arrays with their rows in one table.
std::vector<DeltaPackParams> in_one_table(std::vector<DeltaPackParams> arrays) {
  for (std::size_t i = 1; i < arrays.size(); ++i) {
    const DeltaPackParams& last = arrays[i - 1];
    const u64 blocks = ceil_div(last.count, last.block_elements);
    arrays[i].entries = last.entries + blocks;
    arrays[i].offsets = last.offsets + blocks;
  }
  return arrays;
}

// The same for blocks of the other size.
template <typename Params>
Params with_blocks_of(std::uint64_t block_elements, Params params) {
  params.block_elements = block_elements;
  return params;
}

Status apply(const Bench& bench, const ApplyCall& call) {
  const ApplyArray& array = call;
  return bench.codec->delta_apply(
      {{&array, 1}, {&call.block_elements, 1}, call.bad_block, call.is_undo}, bench.stream->get());
}

// `launch` is refused, the sentence begins with `says`, and no driver call was made.
void check_refused(Bench& bench, const Status& status, const std::string& says) {
  CHECK(status.code() == Code::kInvalidArgument);
  if (!status.message().starts_with(says)) CHECK_EQ(status.message(), says);
  CHECK_EQ(bench.launched(), "");
}

}  // namespace

TEST(each_launch_says_grid_block_and_arguments) {
  {
    Bench bench;
    const CUstream stream = bench.stream->get();
    CHECK(bench.codec->delta_pack({{pack_params()}}, stream).ok());
    CHECK_EQ(bench.launched(),
             "delta_pack_kernel grid 2 1 1 block 512 1 1 shared 0 arguments " + row_text("0x1002") +
                 row_text("0x2002") +
                 "0x10 0x10001 0x10000 0x3004 0x3301 0x33 0x4004 0x55 0x5008 0x0 0x6008 0x7008 "
                 "0x8008 0xc 0x9999\n");
    CHECK(bench.codec->delta_pack({{with_blocks_of(16'384, pack_params())}}, stream).ok());
    CHECK(bench.launched().starts_with("delta_pack_16k_kernel grid 5 1 1 block 128 1 1 "));
    CHECK(apply(bench, apply_params()).ok());
    CHECK_EQ(bench.launched(),
             "delta_apply_kernel grid 1 1 1 block 128 1 1 shared 0 arguments 0x1 0x4000 0x5008 0x1 "
             "0x1008 0x2008 0x3004 0x44 " +
                 row_text("0x4002") + "0x10 0x4000 0x0 0x0" + zeros(22 * 22) + "\n");
    CHECK(apply(bench, with_blocks_of(65'536, apply_params())).ok());
    CHECK(bench.launched().starts_with("delta_apply_kernel grid 1 1 1 block 256 1 1 "));
    CHECK(bench.codec->topk_unpack(unpack_params(), stream).ok());
    CHECK_EQ(bench.launched(),
             "topk_unpack_kernel grid 2 1 1 block 128 1 1 shared 0 arguments 0x1008 0x2008 "
             "0x3008 0x4004 0x44 " +
                 row_text("0x5002") + "0x10 0x4001 0x4000 0x6008 0x7002 0x77 0x8008\n");
    CHECK(bench.codec->topk_unpack(with_blocks_of(65'536, unpack_params()), stream).ok());
    CHECK(bench.launched().starts_with("topk_unpack_kernel grid 1 1 1 block 256 1 1 "));
    CHECK(bench.codec->topk_histogram(histogram_params(), stream).ok());
    CHECK_EQ(bench.launched(),
             "topk_histogram_kernel grid 2 1 1 block 512 1 1 shared 0 arguments " +
                 row_text("0x1002") + row_text("0x2002") + "0x1001 0x2201 0x22 0x3008\n");
    CHECK(bench.codec->digest(digest_params(), stream).ok());
    CHECK_EQ(bench.launched(), "digest_kernel grid 2 1 1 block 256 1 1 shared 0 arguments " +
                                   row_text("0x1002") + "0x10 0x801 0x8 0x22 0x3008\n");
    const TopkThresholdParams threshold{at<u64>(0x1008), 0x2222, at<u32>(0x3004)};
    CHECK(bench.codec->topk_threshold(threshold, stream).ok());
    CHECK_EQ(bench.launched(),
             "topk_threshold_kernel grid 1 1 1 block 1024 1 1 shared 0 arguments 0x1008 0x2222 "
             "0x3004\n");
  }
  check_clean();
}

TEST(persistent_grids_end_where_the_device_is_busy) {
  {
    Bench bench;
    const std::string busy = std::to_string(bench.device->facts().multiprocessors * 8);
    DigestParams digest = digest_params();
    digest.count = std::uint64_t{1} << 40;
    CHECK(bench.codec->digest(digest, bench.stream->get()).ok());
    CHECK(bench.launched().starts_with("digest_kernel grid " + busy + " 1 1 "));
    TopkHistogramParams histogram = histogram_params();
    histogram.count = std::uint64_t{1} << 31;
    CHECK(bench.codec->topk_histogram(histogram, bench.stream->get()).ok());
    CHECK(bench.launched().starts_with("topk_histogram_kernel grid " + busy + " 1 1 "));
    // A CTA counts in 32 bits, so there are more of them than keep the device busy.
    histogram.count = (std::uint64_t{1} << 43) + 1;
    CHECK(bench.codec->topk_histogram(histogram, bench.stream->get()).ok());
    CHECK(bench.launched().starts_with("topk_histogram_kernel grid 4097 1 1 "));
  }
  check_clean();
}

TEST(no_elements_is_no_launch) {
  {
    Bench bench;
    const CUstream stream = bench.stream->get();
    CHECK(bench.codec->delta_pack({}, stream).ok());
    CHECK(apply(bench, {}).ok());
    CHECK(bench.codec->topk_unpack({}, stream).ok());
    CHECK(bench.codec->topk_histogram({}, stream).ok());
    CHECK(bench.codec->digest({}, stream).ok());
    CHECK_EQ(bench.launched(), "");
    CHECK_EQ(fake().calls("cuLaunchKernel"), 0);
  }
  check_clean();
}

// Each address is made null, then misaligned; an address that may be null is marked.
template <typename Params, typename Owner, typename T, typename Launch>
void check_address(Bench& bench, Params params, T* Owner::* field, const std::string& name,
                   bool may_be_null, const Launch& launch) {
  const Params sound = params;
  params.*field = nullptr;
  if (may_be_null) {
    CHECK(launch(params).ok());
    CHECK(!bench.launched().empty());
  } else {
    check_refused(bench, launch(params), name + " must not be null: pass device memory");
  }
  const auto moved = std::bit_cast<std::uint64_t>(sound.*field) + alignof(T) / 2;
  params.*field = std::bit_cast<T*>(moved);
  char place[32];
  std::snprintf(place, sizeof place, "0x%llx", static_cast<unsigned long long>(moved));
  check_refused(
      bench, launch(params),
      name + " is at " + place + ", which is not a multiple of " + std::to_string(alignof(T)));
}

// The same for a box of 16-bit elements; then dimensions that no array has.
template <typename Params, typename Owner, typename Launch>
void check_box(Bench& bench, const Params& sound, kernels::Box Owner::* field,
               const std::string& name, bool may_be_null, const Launch& launch) {
  Params params = sound;
  (params.*field).base = nullptr;
  if (may_be_null) {
    CHECK(launch(params).ok());
    CHECK(!bench.launched().empty());
  } else {
    check_refused(bench, launch(params), name + " must not be null: pass device memory");
  }
  (params.*field).base = (sound.*field).base + 1;
  check_refused(bench, launch(params), name + " is at 0x");
  params = sound;
  for (kernels::Divisor& size : (params.*field).sizes) {
    const kernels::Divisor held = size;
    size.number = 0;
    check_refused(bench, launch(params),
                  name + " has a dimension of size 0: sizes must be at least 1");
    size = held;
  }
}

#define CHECK_BOX(params, field, may_be_null) \
  check_box(bench, params, &decltype(params)::field, #field, may_be_null, launch)
#define CHECK_ADDRESS(params, field, may_be_null) \
  check_address(bench, params, &decltype(params)::field, #field, may_be_null, launch)

TEST(flat_bf16_weights_have_kernels_of_their_own) {
  {
    Bench bench;
    const auto launched = [&](const DeltaPackParams& params) {
      CHECK(bench.codec->delta_pack({{params}}, bench.stream->get()).ok());
      const std::string text = bench.launched();
      return text.substr(0, text.find(" block"));
    };
    DeltaPackParams flat = pack_params();
    flat.bits = row_at(0x1010);
    flat.shadow = row_at(0x2020);
    flat.count = 65'536;
    flat.ages = nullptr;
    CHECK_EQ(launched(flat), "delta_pack_flat_64k_kernel grid 1 1 1");
    CHECK_EQ(launched(with_blocks_of(16'384, flat)), "delta_pack_flat_16k_kernel grid 4 1 1");
    const auto check_general = [&](const auto& change) {
      DeltaPackParams params = flat;
      change(params);
      CHECK_EQ(launched(params), "delta_pack_kernel grid 1 1 1");
    };
    check_general([](DeltaPackParams& one) { one.bits = row_at(0x1018); });
    check_general([](DeltaPackParams& one) { one.shadow = row_at(0x2028); });
    check_general([](DeltaPackParams& one) { one.shadow = {}; });
    check_general([](DeltaPackParams& one) { one.bits.strides[3] = 2; });
    check_general([](DeltaPackParams& one) { one.bits.sizes[2].number = 65'535; });
    check_general([](DeltaPackParams& one) {
      one.width = 32;
      one.threshold = nullptr;
    });
    check_general([](DeltaPackParams& one) { one.ages = at<u8>(0x3301); });
    flat.count = 65'529;
    flat.digest = nullptr;
    flat.threshold = nullptr;
    CHECK_EQ(launched(flat), "delta_pack_flat_64k_kernel grid 1 1 1");
  }
  check_clean();
}

TEST(flat_arrays_share_launches) {
  {
    Bench bench;
    const auto grids = [&](const std::vector<DeltaPackParams>& arrays) {
      CHECK(bench.codec->delta_pack(in_one_table(arrays), bench.stream->get()).ok());
      std::istringstream text{bench.launched()};
      std::string found;
      for (std::string line; std::getline(text, line);) {
        const std::size_t from = std::string_view{"delta_pack_"}.size();
        found += line.substr(from, line.find(" 1 1") - from) + "; ";
      }
      return found;
    };
    DeltaPackParams flat = pack_params();
    flat.bits = row_at(0x1010);
    flat.shadow = row_at(0x2020);
    flat.ages = nullptr;
    const std::vector<DeltaPackParams> many(130, flat);
    CHECK_EQ(grids(many),
             "flat_64k_kernel grid 126; flat_64k_kernel grid 126; "
             "flat_64k_kernel grid 8; ");
    DeltaPackParams empty = flat;
    empty.count = 0;
    CHECK_EQ(grids({empty, flat, pack_params(), empty, flat}),
             "flat_64k_kernel grid 2; kernel grid 2; flat_64k_kernel grid 2; ");
    const auto check_apart = [&](const auto& change) {
      DeltaPackParams other = flat;
      change(other);
      CHECK_EQ(grids({flat, flat, other}), "flat_64k_kernel grid 4; flat_64k_kernel grid 2; ");
    };
    check_apart([](DeltaPackParams& one) { one.threshold = nullptr; });
    check_apart([](DeltaPackParams& one) { one.seed = 1; });
    CHECK_EQ(grids({flat, with_blocks_of(16'384, flat)}),
             "flat_64k_kernel grid 2; flat_16k_kernel grid 5; ");
    DeltaPackParams large = flat;
    large.count = kBlocksMax * 65'536 - 65'536;
    large.bits = large.shadow = device_box(at<u8>(0x1010), DeviceShape::row(large.count));
    CHECK_EQ(grids({large, flat}), "flat_64k_kernel grid 2147483646; flat_64k_kernel grid 2; ");
    // Nothing is launched if one array cannot be packed.
    DeltaPackParams bad = flat;
    bad.newest = nullptr;
    check_refused(bench, bench.codec->delta_pack({{flat, pack_params(), bad}}, bench.stream->get()),
                  "newest must not be null");
  }
  check_clean();
}

TEST(blocks_of_a_call_are_numbered_in_one_table) {
  {
    Bench bench;
    const CUstream stream = bench.stream->get();
    DeltaPackParams flat = pack_params();
    flat.bits = row_at(0x1010);
    flat.shadow = row_at(0x2020);
    flat.ages = nullptr;
    const std::vector<DeltaPackParams> sound =
        in_one_table({flat, pack_params(), with_blocks_of(16'384, flat)});
    CHECK(bench.codec->delta_pack(sound, stream).ok());
    const std::string launched = bench.launched();
    CHECK(launched.find("arguments 0x1 0x3004 0x4004 0x55 0x5008 0x0 0x9999 ") !=
          std::string::npos);
    CHECK(launched.find(" 0x5008 0x2 0x6018 0x7018 0x8008 0xc 0x9999") != std::string::npos);
    CHECK(launched.find("arguments 0x1 0x3004 0x4004 0x55 0x5008 0x4 0x9999 ") !=
          std::string::npos);
    const auto check = [&](const auto& change) {
      std::vector<DeltaPackParams> arrays = sound;
      change(arrays[1]);
      check_refused(bench, bench.codec->delta_pack(arrays, stream),
                    "arrays that are packed together must share arena and newest");
    };
    check([](DeltaPackParams& one) { one.arena = at<u32>(0x4104); });
    check([](DeltaPackParams& one) { one.arena_words = 0x56; });
    check([](DeltaPackParams& one) { one.newest = at<u64>(0x5108); });
    check([](DeltaPackParams& one) { one.entries += 1; });
    check([](DeltaPackParams& one) { one.offsets -= 1; });
  }
  check_clean();
}

TEST(deltas_of_many_arrays_share_launches) {
  {
    Bench bench;
    const auto grids = [&](const std::vector<ApplyCall>& calls) {
      std::vector<ApplyArray> arrays(calls.begin(), calls.end());
      std::vector<u64> block_elements;
      for (const ApplyCall& one : calls) block_elements.push_back(one.block_elements);
      CHECK(bench.codec
                ->delta_apply({arrays, block_elements, at<u64>(0x5008), false}, bench.stream->get())
                .ok());
      std::istringstream text{bench.launched()};
      std::string found;
      for (std::string line; std::getline(text, line);) {
        found += line.substr(0, line.find(" 1 1 block")) + "; ";
      }
      return found;
    };
    ApplyCall two = apply_params();
    two.count = 16'385;
    const std::string full = "delta_apply_kernel grid 46; ";
    CHECK_EQ(grids(std::vector<ApplyCall>(50, two)), full + full + "delta_apply_kernel grid 8; ");
    ApplyCall empty = two;
    empty.count = 0;
    ApplyCall other = with_blocks_of(65'536, two);
    ApplyCall summed = two;
    summed.digest = at<u64>(0x6008);
    CHECK_EQ(grids({empty, two, empty, two, other, two}),
             "delta_apply_kernel grid 4; delta_apply_kernel grid 1; delta_apply_kernel grid 2; ");
    CHECK_EQ(grids({two, summed, summed}),
             "delta_apply_kernel grid 2; delta_apply_digest_kernel grid 4; ");
    CHECK_EQ(grids({empty}), "");
  }
  check_clean();
}

TEST(address_that_no_kernel_can_use_is_refused) {
  {
    Bench bench;
    const CUstream stream = bench.stream->get();
    {
      const auto launch = [&](const auto& one) { return bench.codec->delta_pack({{one}}, stream); };
      DeltaPackParams params = pack_params();
      CHECK_BOX(params, bits, false);
      CHECK_BOX(params, shadow, true);
      CHECK_ADDRESS(params, threshold, true);
      CHECK_ADDRESS(params, arena, false);
      CHECK_ADDRESS(params, newest, false);
      CHECK_ADDRESS(params, entries, false);
      CHECK_ADDRESS(params, offsets, false);
      CHECK_ADDRESS(params, digest, true);
      params.arena_words = 0;
      CHECK_ADDRESS(params, arena, true);
    }
    {
      const auto launch = [&](const auto& one) { return apply(bench, one); };
      ApplyCall params = apply_params();
      CHECK_ADDRESS(params, entries, false);
      CHECK_ADDRESS(params, offsets, false);
      CHECK_ADDRESS(params, payload, false);
      CHECK_BOX(params, weights, false);
      CHECK_ADDRESS(params, bad_block, false);
      CHECK_ADDRESS(params, digest, true);
      params.payload_words = 0;
      CHECK_ADDRESS(params, payload, true);
    }
    {
      const auto launch = [&](const auto& one) { return bench.codec->topk_unpack(one, stream); };
      TopkUnpackParams params = unpack_params();
      CHECK_ADDRESS(params, entries, false);
      CHECK_ADDRESS(params, offsets, false);
      CHECK_ADDRESS(params, first_outputs, false);
      CHECK_ADDRESS(params, payload, false);
      CHECK_BOX(params, base, false);
      CHECK_ADDRESS(params, positions, false);
      CHECK_ADDRESS(params, bad_block, false);
      params.payload_words = 0;
      params.output_count = 0;
      CHECK_ADDRESS(params, payload, true);
      CHECK_ADDRESS(params, positions, true);
    }
    {
      const auto launch = [&](const auto& one) { return bench.codec->topk_histogram(one, stream); };
      CHECK_BOX(histogram_params(), bits, false);
      CHECK_BOX(histogram_params(), shadow, false);
      CHECK_ADDRESS(histogram_params(), histogram, false);
    }
    {
      const auto launch = [&](const auto& one) { return bench.codec->topk_threshold(one, stream); };
      const TopkThresholdParams params{at<u64>(0x1008), 1, at<u32>(0x3004)};
      CHECK_ADDRESS(TopkThresholdParams{params}, histogram, false);
      CHECK_ADDRESS(TopkThresholdParams{params}, threshold, false);
    }
    {
      const auto launch = [&](const auto& one) { return bench.codec->digest(one, stream); };
      CHECK_BOX(digest_params(), bits, false);
      CHECK_ADDRESS(digest_params(), sums, false);
    }
  }
  check_clean();
}

TEST(values_are_aligned_to_their_width) {
  {
    Bench bench;
    const CUstream stream = bench.stream->get();
    TopkUnpackParams params = unpack_params();
    params.width = 32;
    params.base.base = at<u8>(0x5004);
    check_refused(bench, bench.codec->topk_unpack(params, stream),
                  "values is at 0x7002, which is not a multiple of 4");
    params.values = nullptr;
    check_refused(bench, bench.codec->topk_unpack(params, stream),
                  "values must not be null: pass device memory");
    params.width = 8;
    params.base.base = at<u8>(0x5001);
    params.values = at<u8>(0x7001);
    CHECK(bench.codec->topk_unpack(params, stream).ok());
  }
  check_clean();
}

TEST(width_that_the_format_does_not_know_is_refused) {
  {
    Bench bench;
    const CUstream stream = bench.stream->get();
    const auto with_width = [](auto params, std::uint64_t width) {
      params.width = width;
      return params;
    };
    for (const std::uint64_t width : {0, 4, 12, 64}) {
      const std::string says =
          "width is " + std::to_string(width) + ": it must be 8, 16 or 32 bits";
      check_refused(bench, bench.codec->delta_pack({{with_width(pack_params(), width)}}, stream),
                    says);
      check_refused(bench, apply(bench, with_width(apply_params(), width)), says);
      check_refused(bench, bench.codec->topk_unpack(with_width(unpack_params(), width), stream),
                    says);
      check_refused(bench, bench.codec->digest(with_width(digest_params(), width), stream), says);
    }
    DeltaPackParams bytes = with_width(pack_params(), 8);
    bytes.first_index = 16;
    const std::string says = "width is 8: thresholds and ages need elements of 16 bits";
    check_refused(bench, bench.codec->delta_pack({{bytes}}, stream), says);
    bytes.threshold = nullptr;
    check_refused(bench, bench.codec->delta_pack({{bytes}}, stream), says);
    bytes.ages = nullptr;
    CHECK(bench.codec->delta_pack({{bytes}}, stream).ok());
  }
  check_clean();
}

TEST(size_that_no_launch_takes_is_refused) {
  {
    Bench bench;
    const CUstream stream = bench.stream->get();
    check_refused(bench, bench.codec->delta_pack({{with_blocks_of(4'096, pack_params())}}, stream),
                  "block_elements is 4096: choose 16384 or 65536");
    ApplyCall large = with_blocks_of(65'536, apply_params());
    large.count = std::uint64_t{0x7FFF'FFFF} * 65'536;
    CHECK(apply(bench, large).ok());
    bench.launched();
    ++large.count;
    check_refused(
        bench, apply(bench, large),
        "count is 140737488289793, which is 2147483648 delta blocks: one launch takes at most "
        "2147483647");
    TopkHistogramParams histogram = histogram_params();
    histogram.count = ~std::uint64_t{0};
    check_refused(bench, bench.codec->topk_histogram(histogram, stream),
                  "count is 18446744073709551615: one launch takes fewer than 2^62 elements");
    DeltaPackParams pack = pack_params();
    pack.first_index = 6;
    check_refused(bench, bench.codec->delta_pack({{pack}}, stream), "first_index is 6:");
    DigestParams digest = digest_params();
    digest.first_index = 6;
    check_refused(bench, bench.codec->digest(digest, stream), "first_index is 6:");
    digest.width = 8;
    digest.first_index = 12;
    check_refused(bench, bench.codec->digest(digest, stream),
                  "first_index is 12: split tensors at multiples of 8 elements");
    digest.width = 32;
    digest.bits.base = at<u8>(0x1004);
    digest.first_index = 6;
    CHECK(bench.codec->digest(digest, stream).ok());
  }
  check_clean();
}

// place_of() of the kernels with these divisors.
static std::uint64_t quotient(std::uint64_t number, const Divisor& by) {
  if (by.number == 1) return number;
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(number) * by.magic >> 64) >>
         by.shift;
}

TEST(divisors_divide_every_index_exactly) {
  const std::uint64_t most = (std::uint64_t{1} << 63) - 1;
  std::vector<std::uint64_t> numbers{1, 2, 3, 5, 7, 641, 65'537, most - 1, most};
  for (unsigned bits = 2; bits < 63; ++bits) {
    for (const int by : {-1, 0, 1}) {
      numbers.push_back((std::uint64_t{1} << bits) + static_cast<std::uint64_t>(by));
    }
  }
  for (const std::uint64_t number : numbers) {
    const Divisor divisor = transfer::divisor_of(number);
    for (const std::uint64_t times : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3},
                                      most / number - (number == 1 ? 0 : 1), most / number}) {
      if (times > most / number) continue;
      const std::uint64_t first = times * number;
      for (const std::uint64_t index : {first, first + (number - 1) / 2, first + number - 1}) {
        if (index >= first && index <= most) CHECK_EQ(quotient(index, divisor), index / number);
      }
      if (first != 0) CHECK_EQ(quotient(first - 1, divisor), times - 1);
    }
  }
}

TEST(launch_that_fails_is_the_drivers_answer) {
  {
    Bench bench;
    fake().fail("cuLaunchKernel", 1, kOutOfMemory);
    const Status status = bench.codec->digest(digest_params(), bench.stream->get());
    CHECK(status.code() == Code::kOutOfMemory);
    CHECK(status.message().starts_with("cuLaunchKernel: "));
    CHECK(bench.codec->digest(digest_params(), bench.stream->get()).ok());
  }
  check_clean();
}

TEST(no_launch_allocates_or_waits) {
  {
    Bench bench;
    const auto calls = [] {
      unsigned all = 0;
#define COUNT_CALLS(name, version, need, arguments) all += fake().calls(#name);
      ROSE_CUDA_ENTRIES(COUNT_CALLS)
#undef COUNT_CALLS
      return all;
    };
    const unsigned before = calls();
    CHECK(bench.codec->delta_pack({{pack_params()}}, bench.stream->get()).ok());
    // Twice, to ask whether the stream is being captured and to launch: the context and the capture
    // mode on, the call, both off.
    CHECK_EQ(calls() - before, 10);
  }
  check_clean();
}

TEST(build_without_device_code_has_no_codec) {
  {
    const DevicePtr device = open_device();
    if (embedded_fatbins().empty()) {
      const Status status = DeviceCodec::create(device).status();
      CHECK(status.code() == Code::kUnavailable);
      CHECK(status.message().starts_with("this build of rose has no device code"));
    }
  }
  check_clean();
}

// The names of the calls so far; indented lines belong to the line above.
static std::vector<std::string> called() {
  std::vector<std::string> names;
  std::istringstream log{fake().log()};
  for (std::string line; std::getline(log, line);) {
    if (!line.starts_with(' ')) names.push_back(line.substr(0, line.find('(')));
  }
  return names;
}

TEST(nothing_leaks_when_the_nth_call_of_create_fails) {
  int failures = 0;
  for (int n = 1;; ++n) {
    {
      const DevicePtr device = open_device();
      const std::size_t before = called().size();
      fake().fail("*", n, kOutOfMemory);
      const Result<CodecPtr> codec = create_codec(device);
      if (fake().is_fail_pending() != 0) {
        CHECK(codec.ok());
        break;
      }
      const std::size_t at = before + static_cast<std::size_t>(n) - 1;
      const std::vector<std::string> names = called();
      const bool is_restored =
          names[at] == "cuThreadExchangeStreamCaptureMode" && names[at - 1] != "cuCtxPushCurrent";
      // A failure to restore context or capture mode is not reported: the call itself succeeded.
      CHECK(codec.ok() == (is_restored || names[at] == "cuCtxPopCurrent"));
      failures += codec.ok() ? 0 : 1;
    }
    CHECK_EQ(std::string{fake().live()}, "");
  }
  // Five libraries, and ten kernels that are found and loaded; each with context and capture mode.
  CHECK_EQ(failures, 3 * 5 + 4 * 10);
}
