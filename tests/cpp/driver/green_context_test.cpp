// Shares of a device's multiprocessors.
#include "driver/green_context.h"

#include "driver/fixture.h"

using namespace rose;
using namespace rose::driver;
using namespace rose::test;

TEST(share_is_at_least_what_was_asked_for) {
  {
    const DevicePtr device = open_device();
    CHECK_EQ(GreenContext::create(device, 16).take()->multiprocessors(), 16);
    CHECK_EQ(GreenContext::create(device, 17).take()->multiprocessors(), 24);
  }
  check_clean();
}

TEST(streams_keep_their_share) {
  {
    const DevicePtr device = open_device();
    auto share = GreenContext::create(device, 32).take();
    const auto stream = share->create_stream(Priority::kHighest).take();
    CHECK_EQ(stream->priority().take(), -5);
    share.reset();
    CHECK(stream->wait(0).ok());
    CHECK(std::string{fake().live()}.find("green contexts 1") != std::string::npos);
  }
  check_clean();
}

TEST(impossible_share_is_an_invalid_argument) {
  {
    const DevicePtr device = open_device();
    CHECK_EQ(says(GreenContext::create(device, 0).status()),
             "cannot take 0 of 132 multiprocessors");
    CHECK_EQ(says(GreenContext::create(device, 133).status()),
             "cannot take 133 of 132 multiprocessors");
    CHECK(GreenContext::create(device, 133).status().code() == Code::kInvalidArgument);
  }
  check_clean();
}

TEST(older_driver_has_no_shares) {
  for (const char* call : {"cuDeviceGetDevResource", "cuDevSmResourceSplitByCount",
                           "cuDevResourceGenerateDesc", "cuGreenCtxCreate", "cuGreenCtxDestroy"}) {
    fake().reset();
    fake().missing(call);
    const DevicePtr device = Device::open(Driver::open().take(), 0).take();
    const Status status = GreenContext::create(device, 16).status();
    CHECK(status.code() == Code::kUnavailable);
    CHECK(status.message().starts_with("the CUDA driver has no " + std::string{call}));
  }
  check_clean();
}
