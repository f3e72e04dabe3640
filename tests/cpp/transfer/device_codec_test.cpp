// The launchers of the delta codec: what reaches the driver, and what is refused before it does.
#include "transfer/device_codec.h"

#include <bit>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "driver/fixture.h"
#include "driver/stream.h"

using namespace rose;
using namespace rose::driver;
using namespace rose::test;
using namespace rose::kernels;
using transfer::DeviceCodec;

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
  std::unique_ptr<Stream> stream{Stream::create(device, Priority::kLowest).take()};

  Bench() {
    for (const char* op : {"delta_pack", "delta_apply", "topk_unpack"}) {
      for (const char* size : {"16ki", "64ki"}) declare(std::string{op} + "_" + size, sizes.at(op));
    }
    declare("topk_histogram", sizeof(TopkHistogramParams));
    declare("topk_threshold", sizeof(TopkThresholdParams));
    declare("digest", sizeof(DigestParams));
  }

  // What was launched since the last time, without the stream: "kernel grid block shared
  // arguments".
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

  const std::map<std::string, std::size_t> sizes{{"delta_pack", sizeof(DeltaPackParams)},
                                                 {"delta_apply", sizeof(DeltaApplyParams)},
                                                 {"topk_unpack", sizeof(TopkUnpackParams)}};
  std::size_t seen{0};
};

template <typename T>
T* at(std::uint64_t address) {
  return std::bit_cast<T*>(address);
}

DeltaPackParams pack_params() {
  return {.bits = at<u16>(0x1002),
          .shadow = at<u16>(0x2002),
          .count = 65'537,
          .threshold = at<u32>(0x3004),
          .arena = at<u32>(0x4004),
          .arena_words = 0x55,
          .cursor = at<u64>(0x5008),
          .entries = at<u64>(0x6008),
          .offsets = at<u64>(0x7008),
          .digest = at<u64>(0x8008),
          .first_index = 12,
          .seed = 0x9999};
}

DeltaApplyParams apply_params() {
  return {.entries = at<u64>(0x1008),
          .offsets = at<u64>(0x2008),
          .payload = at<u32>(0x3004),
          .payload_words = 0x44,
          .weights = at<u16>(0x4002),
          .count = 16'384,
          .bad_block = at<u64>(0x5008),
          .is_undo = 1};
}

TopkUnpackParams unpack_params() {
  return {.entries = at<u64>(0x1008),
          .offsets = at<u64>(0x2008),
          .first_outputs = at<u64>(0x3008),
          .payload = at<u32>(0x4004),
          .payload_words = 0x44,
          .base = at<u16>(0x5002),
          .count = 16'385,
          .positions = at<std::int64_t>(0x6008),
          .values = at<u16>(0x7002),
          .output_count = 0x77,
          .bad_block = at<u64>(0x8008)};
}

TopkHistogramParams histogram_params() {
  return {.bits = at<u16>(0x1002),
          .shadow = at<u16>(0x2002),
          .count = 4'097,
          .histogram = at<u64>(0x3008)};
}

DigestParams digest_params() {
  return {.bits = at<u16>(0x1002),
          .count = 2'049,
          .first_index = 8,
          .seed = 0x22,
          .sums = at<u64>(0x3008)};
}

// `launch` is refused, the sentence begins with `says`, and the driver heard nothing.
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
    CHECK(bench.codec->delta_pack(pack_params(), 65'536, stream).ok());
    CHECK_EQ(bench.launched(),
             "delta_pack_64ki_kernel grid 2 1 1 block 512 1 1 shared 0 arguments 0x1002 0x2002 "
             "0x10001 0x3004 0x4004 0x55 0x5008 0x6008 0x7008 0x8008 0xc 0x9999\n");
    CHECK(bench.codec->delta_pack(pack_params(), 16'384, stream).ok());
    CHECK(bench.launched().starts_with("delta_pack_16ki_kernel grid 5 1 1 block 128 1 1 "));
    CHECK(bench.codec->delta_apply(apply_params(), 16'384, stream).ok());
    CHECK_EQ(bench.launched(),
             "delta_apply_16ki_kernel grid 1 1 1 block 128 1 1 shared 0 arguments 0x1008 0x2008 "
             "0x3004 0x44 0x4002 0x4000 0x5008 0x1\n");
    CHECK(bench.codec->delta_apply(apply_params(), 65'536, stream).ok());
    CHECK(bench.launched().starts_with("delta_apply_64ki_kernel grid 1 1 1 block 512 1 1 "));
    CHECK(bench.codec->topk_unpack(unpack_params(), 16'384, stream).ok());
    CHECK_EQ(bench.launched(),
             "topk_unpack_16ki_kernel grid 2 1 1 block 128 1 1 shared 0 arguments 0x1008 0x2008 "
             "0x3008 0x4004 0x44 0x5002 0x4001 0x6008 0x7002 0x77 0x8008\n");
    CHECK(bench.codec->topk_unpack(unpack_params(), 65'536, stream).ok());
    CHECK(bench.launched().starts_with("topk_unpack_64ki_kernel grid 1 1 1 block 512 1 1 "));
    CHECK(bench.codec->topk_histogram(histogram_params(), stream).ok());
    CHECK_EQ(bench.launched(),
             "topk_histogram_kernel grid 2 1 1 block 512 1 1 shared 0 arguments 0x1002 0x2002 "
             "0x1001 0x3008\n");
    CHECK(bench.codec->digest(digest_params(), stream).ok());
    CHECK_EQ(bench.launched(),
             "digest_kernel grid 2 1 1 block 256 1 1 shared 0 arguments 0x1002 0x801 0x8 0x22 "
             "0x3008\n");
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
    // A CTA counts in 32 bits: more of them than keep the device busy.
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
    CHECK(bench.codec->delta_pack({}, 16'384, stream).ok());
    CHECK(bench.codec->delta_apply({}, 16'384, stream).ok());
    CHECK(bench.codec->topk_unpack({}, 16'384, stream).ok());
    CHECK(bench.codec->topk_histogram({}, stream).ok());
    CHECK(bench.codec->digest({}, stream).ok());
    CHECK_EQ(bench.launched(), "");
    CHECK_EQ(fake().calls("cuLaunchKernel"), 0);
  }
  check_clean();
}

// Each address is first made null, then moved off its alignment; what may be null says so.
template <typename Params, typename T, typename Launch>
void check_address(Bench& bench, Params params, T* Params::* field, const std::string& name,
                   bool may_be_null, const Launch& launch) {
  const Params sound = params;
  params.*field = nullptr;
  if (may_be_null) {
    CHECK(launch(params).ok());
    CHECK(!bench.launched().empty());
  } else {
    check_refused(bench, launch(params), name + " is null; give device memory");
  }
  const auto moved = std::bit_cast<std::uint64_t>(sound.*field) + alignof(T) / 2;
  params.*field = std::bit_cast<T*>(moved);
  char place[32];
  std::snprintf(place, sizeof place, "0x%llx", static_cast<unsigned long long>(moved));
  check_refused(
      bench, launch(params),
      name + " is at " + place + ", which is no multiple of " + std::to_string(alignof(T)));
}

#define CHECK_ADDRESS(params, field, may_be_null) \
  check_address(bench, params, &decltype(params)::field, #field, may_be_null, launch)

TEST(address_that_no_kernel_can_use_is_refused) {
  {
    Bench bench;
    const CUstream stream = bench.stream->get();
    {
      const auto launch = [&](const auto& one) {
        return bench.codec->delta_pack(one, 16'384, stream);
      };
      DeltaPackParams params = pack_params();
      CHECK_ADDRESS(params, bits, false);
      CHECK_ADDRESS(params, shadow, false);
      CHECK_ADDRESS(params, threshold, true);
      CHECK_ADDRESS(params, arena, false);
      CHECK_ADDRESS(params, cursor, false);
      CHECK_ADDRESS(params, entries, false);
      CHECK_ADDRESS(params, offsets, false);
      CHECK_ADDRESS(params, digest, true);
      params.arena_words = 0;
      CHECK_ADDRESS(params, arena, true);
    }
    {
      const auto launch = [&](const auto& one) {
        return bench.codec->delta_apply(one, 16'384, stream);
      };
      DeltaApplyParams params = apply_params();
      CHECK_ADDRESS(params, entries, false);
      CHECK_ADDRESS(params, offsets, false);
      CHECK_ADDRESS(params, payload, false);
      CHECK_ADDRESS(params, weights, false);
      CHECK_ADDRESS(params, bad_block, false);
      params.payload_words = 0;
      CHECK_ADDRESS(params, payload, true);
    }
    {
      const auto launch = [&](const auto& one) {
        return bench.codec->topk_unpack(one, 16'384, stream);
      };
      TopkUnpackParams params = unpack_params();
      CHECK_ADDRESS(params, entries, false);
      CHECK_ADDRESS(params, offsets, false);
      CHECK_ADDRESS(params, first_outputs, false);
      CHECK_ADDRESS(params, payload, false);
      CHECK_ADDRESS(params, base, false);
      CHECK_ADDRESS(params, positions, false);
      CHECK_ADDRESS(params, values, false);
      CHECK_ADDRESS(params, bad_block, false);
      params.payload_words = 0;
      params.output_count = 0;
      CHECK_ADDRESS(params, payload, true);
      CHECK_ADDRESS(params, positions, true);
      CHECK_ADDRESS(params, values, true);
    }
    {
      const auto launch = [&](const auto& one) { return bench.codec->topk_histogram(one, stream); };
      CHECK_ADDRESS(histogram_params(), bits, false);
      CHECK_ADDRESS(histogram_params(), shadow, false);
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
      CHECK_ADDRESS(digest_params(), bits, false);
      CHECK_ADDRESS(digest_params(), sums, false);
    }
  }
  check_clean();
}

TEST(size_that_no_launch_takes_is_refused) {
  {
    Bench bench;
    const CUstream stream = bench.stream->get();
    check_refused(bench, bench.codec->delta_pack(pack_params(), 4'096, stream),
                  "block_elements is 4096; delta blocks have 16384 or 65536 elements");
    DeltaApplyParams apply = apply_params();
    apply.count = std::uint64_t{0x7FFF'FFFF} * 65'536;
    CHECK(bench.codec->delta_apply(apply, 65'536, stream).ok());
    CHECK(bench.launched().starts_with("delta_apply_64ki_kernel grid 2147483647 1 1 "));
    ++apply.count;
    check_refused(bench, bench.codec->delta_apply(apply, 65'536, stream),
                  "count is 140737488289793, which is 2147483648 delta blocks; one launch takes "
                  "2147483647");
    TopkHistogramParams histogram = histogram_params();
    histogram.count = ~std::uint64_t{0};
    check_refused(bench, bench.codec->topk_histogram(histogram, stream),
                  "count is 18446744073709551615; one launch counts less than 2^62 elements");
    DeltaPackParams pack = pack_params();
    pack.first_index = 6;
    check_refused(bench, bench.codec->delta_pack(pack, 16'384, stream), "first_index is 6;");
    DigestParams digest = digest_params();
    digest.first_index = 6;
    check_refused(bench, bench.codec->digest(digest, stream), "first_index is 6;");
  }
  check_clean();
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
    CHECK(bench.codec->delta_pack(pack_params(), 65'536, bench.stream->get()).ok());
    CHECK_EQ(calls() - before, 3);  // the context on, the launch, the context off
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

// The names of the calls so far; lines that are indented belong to the one above.
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
      const std::string failed = called().at(before + static_cast<std::size_t>(n) - 1);
      // A context that does not come off is noticed by nobody: the call itself went well.
      CHECK(codec.ok() == (failed == "cuCtxPopCurrent"));
      failures += codec.ok() ? 0 : 1;
    }
    CHECK_EQ(std::string{fake().live()}, "");
  }
  // Five libraries, and nine kernels that are found and loaded; each under a context.
  CHECK_EQ(failures, 2 * 5 + 3 * 9);
}

TEST_MAIN()
