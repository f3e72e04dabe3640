// The launcher of the quantiser: arguments of the driver calls, and refusals before them.
#include "transfer/device_quantise.h"

#include <bit>
#include <cstdio>
#include <string>

#include "check.h"
#include "driver/fixture.h"
#include "driver/stream.h"

using namespace rose;
using namespace rose::driver;
using namespace rose::test;
using namespace rose::kernels;
using transfer::DeviceQuantiser;

namespace {

using QuantiserPtr = std::shared_ptr<const DeviceQuantiser>;

Result<QuantiserPtr> create_quantiser(const DevicePtr& device) {
  auto library = KernelLibrary::create(device, Fatbin{"of the quantiser", kCode});
  ROSE_TRY(library.status());
  return DeviceQuantiser::create(library.take());
}

// A quantiser, a stream, and the last launch as text.
struct Bench {
  DevicePtr device{open_device()};
  QuantiserPtr quantiser{create_quantiser(device).take()};
  std::unique_ptr<Stream> stream{Stream::create(device, StreamPriority::kLowest).take()};

  Bench() {
    const std::string bytes = std::to_string(sizeof(QuantiseParams));
    for (const char* name : {"quantise_cta_kernel", "quantise_warp_kernel"}) {
      fake().arguments(name, bytes.c_str());
    }
  }

  Status launch(const QuantiseParams& params) const {
    return quantiser->quantise(params, stream->get());
  }

  // Launches since the last call, from the kernel's name on, without the stream.
  std::string launched() {
    const std::string all = fake().kernels();
    std::string text = all.substr(seen);
    seen = all.size();
    const std::size_t at = text.find(" stream ");
    if (at == std::string::npos) return text;
    return text.erase(at, text.find(" arguments ") - at);
  }

 private:
  std::size_t seen{0};
};

template <typename T>
T* at(std::uint64_t address) {
  return std::bit_cast<T*>(address);
}

QuantiseParams params() {
  return {.bits = at<u16>(0x1002),
          .rows = 0x201,
          .cols = 0x300,
          .row_stride = 0x333,
          .block_rows = 0x80,
          .block_cols = 0x90,
          .codes = at<u8>(0x2001),
          .scales = at<float>(0x3004),
          .kind = CodeKind::kInt8};
}

void check_refused(Bench& bench, const QuantiseParams& wrong, const std::string& says) {
  const Status status = bench.launch(wrong);
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK_EQ(status.message(), says);
  CHECK_EQ(bench.launched(), "");
}

}  // namespace

TEST(a_launch_says_grid_block_and_arguments) {
  {
    Bench bench;
    CHECK(bench.launch(params()).ok());
    CHECK_EQ(bench.launched(),
             "quantise_cta_kernel grid 30 1 1 block 256 1 1 shared 0 arguments 0x1002 0x201 0x300 "
             "0x333 0x80 0x90 0x2001 0x3004 0x1\n");
    QuantiseParams small = params();
    small.block_rows = 1;
    small.block_cols = 128;
    small.kind = CodeKind::kFp8;
    small.rows = 9;
    CHECK(bench.launch(small).ok());
    CHECK_EQ(bench.launched(),
             "quantise_warp_kernel grid 7 1 1 block 256 1 1 shared 0 arguments 0x1002 0x9 0x300 "
             "0x333 0x1 0x80 0x2001 0x3004 0x0\n");
  }
  check_clean();
}

TEST(a_warp_takes_the_small_blocks_and_no_grid_is_larger_than_keeps_the_device_busy) {
  {
    Bench bench;
    const std::string busy = std::to_string(bench.device->facts().multiprocessors * 8);
    QuantiseParams many = params();
    many.rows = std::uint64_t{1} << 40;
    many.block_rows = 1;
    many.block_cols = 2049;  // more than the matrix has columns
    CHECK(bench.launch(many).ok());
    CHECK(bench.launched().starts_with("quantise_warp_kernel grid " + busy + " 1 1 "));
    many.cols = many.row_stride = 2048;
    CHECK(bench.launch(many).ok());
    CHECK(bench.launched().starts_with("quantise_warp_kernel grid " + busy + " 1 1 "));
    many.cols = many.row_stride = 2049;
    CHECK(bench.launch(many).ok());
    CHECK(bench.launched().starts_with("quantise_cta_kernel grid " + busy + " 1 1 "));
    QuantiseParams one = params();
    one.block_rows = one.block_cols = ~std::uint64_t{0};
    CHECK(bench.launch(one).ok());
    CHECK(bench.launched().starts_with("quantise_cta_kernel grid 1 1 1 "));
  }
  check_clean();
}

TEST(no_weights_is_no_launch) {
  {
    Bench bench;
    CHECK(bench.launch({}).ok());
    QuantiseParams empty{};
    empty.rows = 5;
    CHECK(bench.launch(empty).ok());
    CHECK_EQ(bench.launched(), "");
  }
  check_clean();
}

TEST(what_no_kernel_can_use_is_refused) {
  {
    Bench bench;
    const auto refused = [&](auto change, const std::string& says) {
      QuantiseParams wrong = params();
      change(wrong);
      check_refused(bench, wrong, says);
    };
    refused([](auto& one) { one.bits = nullptr; }, "bits must not be null: pass device memory");
    refused([](auto& one) { one.codes = nullptr; }, "codes must not be null: pass device memory");
    refused([](auto& one) { one.scales = nullptr; }, "scales must not be null: pass device memory");
    refused([](auto& one) { one.bits = at<u16>(0x1001); },
            "bits is at 0x1001, which is not a multiple of 2");
    refused([](auto& one) { one.scales = at<float>(0x3002); },
            "scales is at 0x3002, which is not a multiple of 4");
    refused([](auto& one) { one.block_rows = 0; },
            "a scale block of 0 x 144 weights: it must be at least 1 x 1");
    refused([](auto& one) { one.block_cols = 0; },
            "a scale block of 128 x 0 weights: it must be at least 1 x 1");
    refused([](auto& one) { one.row_stride = 0x2FF; },
            "rows of 768 weights are 767 apart: they must not overlap");
    refused([](auto& one) { one.rows = std::uint64_t{1} << 60; },
            "1152921504606846976 x 768 weights with rows 819 apart: a matrix must span less than "
            "2^62 weights");
  }
  check_clean();
}

TEST(nothing_leaks_when_the_nth_call_of_create_fails) {
  for (int n = 1;; ++n) {
    {
      const DevicePtr device = open_device();
      fake().fail("*", n, kOutOfMemory);
      const Result<QuantiserPtr> quantiser = create_quantiser(device);
      if (fake().is_fail_pending() != 0) {
        CHECK(quantiser.ok());
        CHECK(n > 2 + 3 * 2);  // a library, and two kernels that are found and loaded
        break;
      }
    }
    CHECK_EQ(std::string{fake().live()}, "");
  }
}
