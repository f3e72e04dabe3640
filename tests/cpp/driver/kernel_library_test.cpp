// Device code: loaded early, and launched with exactly its arguments.
#include "driver/kernel_library.h"

#include <bit>

#include "driver/fixture.h"
#include "driver/stream.h"

using namespace rose;
using namespace rose::driver;
using namespace rose::test;

TEST(launch_passes_arguments_by_value) {
  {
    const DevicePtr device = open_device();
    fake().arguments("scale_kernel", "8 4 2 8");
    const auto library = KernelLibrary::create(device, Fatbin{"scale", kCode}).take();
    const auto stream = Stream::create(device, StreamPriority::kLowest).take();
    const CUkernel kernel = library->kernel("scale_kernel").take();
    const DevicePointer at = 0x123456789abc;
    CHECK(library
              ->launch(kernel, {.blocks = 7, .threads = 96, .shared_bytes = 1024}, stream->get(),
                       at, 1.5F, std::uint16_t{65535}, -2.0)
              .ok());
    const std::string ran = fake().kernels();
    CHECK(ran.starts_with("scale_kernel grid 7 1 1 block 96 1 1 shared 1024 stream 0x"));
    CHECK(ran.ends_with("arguments 0x123456789abc 0x3fc00000 0xffff 0xc000000000000000\n"));
  }
  check_clean();
}

TEST(kernel_runs_when_its_stream_gets_there) {
  {
    const DevicePtr device = open_device();
    const auto library = KernelLibrary::create(device, Fatbin{"scale", kCode}).take();
    const auto stream = Stream::create(device, StreamPriority::kLowest).take();
    const CUkernel kernel = library->kernel("scale_kernel").take();
    int runs = 0;
    fake().on_kernel(
        "scale_kernel",
        [](const std::uint64_t*, unsigned, void* context) { ++*static_cast<int*>(context); },
        &runs);
    fake().hold(stream->get());
    CHECK(library->launch(kernel, {}, stream->get()).ok());
    CHECK(!stream->is_idle().take());
    CHECK_EQ(runs, 0);
    fake().release(stream->get());
    CHECK(stream->is_idle().take());
    CHECK_EQ(runs, 1);
  }
  check_clean();
}

TEST(impossible_launch_is_an_invalid_argument) {
  {
    const DevicePtr device = open_device();
    const auto library = KernelLibrary::create(device, Fatbin{"scale", kCode}).take();
    const auto stream = Stream::create(device, StreamPriority::kLowest).take();
    const CUkernel kernel = library->kernel("scale_kernel").take();
    CHECK(library->launch(kernel, {.blocks = 0}, stream->get()).code() == Code::kInvalidArgument);
    fake().fail("cuLibraryGetKernel", 1, kNotFound);
    CHECK_EQ(says(library->kernel("absent").status()), "the fat binary has no kernel 'absent'");
  }
  check_clean();
}

TEST(name_that_is_not_embedded_is_unavailable) {
  {
    const DevicePtr device = open_device();
    const Status status = KernelLibrary::create(device, "no such file").status();
    CHECK(status.code() == Code::kUnavailable);
    CHECK(status.message().starts_with("this build of rose has no "));
    for (const Fatbin& one : embedded_fatbins()) {
      CHECK(KernelLibrary::create(device, one.name).ok());
    }
  }
  check_clean();
}
