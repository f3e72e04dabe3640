// The driver, its devices, and whose context is current.
#include "driver/driver.h"

#include "driver/fixture.h"

using namespace rose;
using namespace rose::driver;
using namespace rose::test;

TEST(device_shows_its_facts) {
  {
    const DevicePtr device = open_device();
    CHECK_EQ(device->driver().version(), 13000);
    const DeviceFacts& facts = device->facts();
    CHECK_EQ(facts.name, "Fake GPU 0");
    CHECK_EQ(facts.compute_major, 9);
    CHECK_EQ(facts.compute_minor, 0);
    CHECK_EQ(facts.multiprocessors, 132);
    CHECK(facts.has_virtual_memory && facts.has_posix_fd_handles);
    CHECK(facts.has_stream_mem_ops_64 && facts.has_wait_value_nor);
    const Result<Device::PriorityRange> range = device->priority_range();
    CHECK_EQ(range.value().lowest, 0);
    CHECK_EQ(range.value().highest, -5);
    fake().set_memory(5 * kPage);
    const Result<memory::Pool> words = create_words(device);  // two pages: a header and a slab
    const Result<Device::MemoryInfo> memory = device->memory_info();
    CHECK_EQ(memory.value().total_bytes, 5 * kPage);
    CHECK_EQ(memory.value().free_bytes, 3 * kPage);
  }
  check_clean();
}

TEST(each_fact_has_its_own_attribute) {
  fake().reset();
  const DriverPtr driver = Driver::open().take();
  const auto facts_without = [&](int attribute) {
    fake().reset();
    fake().set_attribute(attribute, 0);
    return device_facts(*driver, 0).take();
  };
  CHECK(!facts_without(102).has_virtual_memory);
  CHECK(!facts_without(103).has_posix_fd_handles);
  CHECK(!facts_without(122).has_stream_mem_ops_64);
  CHECK(!facts_without(123).has_wait_value_nor);
  CHECK_EQ(facts_without(16).multiprocessors, 0);
  CHECK_EQ(facts_without(75).compute_major, 0);
  CHECK(facts_without(16).has_virtual_memory);
}

TEST(facts_make_no_context) {
  fake().reset();
  const DriverPtr driver = Driver::open().take();
  CHECK(device_facts(*driver, 0).ok());
  CHECK_EQ(fake().calls("cuDevicePrimaryCtxRetain"), 0);
  CHECK_EQ(fake().calls("cuCtxPushCurrent"), 0);
}

TEST(device_that_is_not_there_is_an_invalid_argument) {
  fake().reset();
  fake().set_devices(2);
  const DriverPtr driver = Driver::open().take();
  for (const int ordinal : {-1, 2}) {
    const Status status = Device::open(driver, ordinal).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_EQ(says(status), "no CUDA device " + std::to_string(ordinal) +
                               ": the driver reports 2 devices, counted from 0");
  }
  {
    const DevicePtr second = Device::open(driver, 1).take();
    CHECK_EQ(second->facts().name, "Fake GPU 1");
    CHECK_EQ(second->handle(), 1);
  }
  check_clean();
}

TEST(current_gives_back_what_was_current) {
  {
    const DevicePtr device = open_device();
    fake().push_foreign();
    {
      const Current outer{*device};
      CHECK(outer.status().ok());
      {
        const Current inner{*device};
        CHECK_EQ(fake().depth(), 3);
      }
      CHECK_EQ(fake().depth(), 2);
    }
    CHECK(fake().is_foreign_current() != 0);
    fake().fail("cuCtxPushCurrent", 1, 3);
    {
      const Current refused{*device};
      CHECK_EQ(says(refused.status()),
               "cuCtxPushCurrent: CUDA_ERROR_NOT_INITIALIZED (3): initialization error");
    }
    CHECK(fake().is_foreign_current() != 0);
    fake().pop_foreign();
  }
  check_clean();
}

TEST(answers_have_kinds) {
  fake().reset();
  const DriverPtr driver = Driver::open().take();
  const auto code = [&](Answer answer) { return driver->status("cuX", answer).code(); };
  CHECK(code(kSuccess) == Code::kOk);
  CHECK(code(kOutOfMemory) == Code::kOutOfMemory);
  CHECK(code(kInvalidValue) == Code::kInvalidArgument);
  CHECK(code(kInvalidDevice) == Code::kInvalidArgument);
  CHECK(code(kNotFound) == Code::kInvalidArgument);
  CHECK(code(kInvalidContext) == Code::kInternal);
  CHECK(code(kInvalidHandle) == Code::kInternal);
  CHECK(code(kNotSupported) == Code::kUnavailable);
  CHECK(code(kNotReady) == Code::kUnavailable);
  CHECK_EQ(says(driver->status("cuX", 2)), "cuX: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
  CHECK_EQ(says(driver->status("cuX", 12345)), "cuX: error 12345");
}

TEST(missing_optional_entry_is_unavailable) {
  {
    fake().reset();
    fake().missing("cuStreamGetCaptureInfo");
    const DevicePtr device = Device::open(Driver::open().take(), 0).take();
    const Status status = ROSE_CU(device->driver(), cuStreamGetCaptureInfo, nullptr, nullptr,
                                  nullptr, nullptr, nullptr, nullptr, nullptr);
    CHECK(status.code() == Code::kUnavailable);
    CHECK_EQ(says(status),
             "the CUDA driver has no cuStreamGetCaptureInfo, which came with CUDA 12.3: update the "
             "driver");
  }
  check_clean();
}

TEST(older_driver_has_what_it_has) {
  {
    fake().reset();
    fake().set_version(12020);
    const DriverPtr driver = Driver::open().take();
    CHECK_EQ(driver->version(), 12020);
    CHECK(driver->entries().cuStreamBatchMemOp != nullptr);
    CHECK(driver->entries().cuStreamGetCaptureInfo == nullptr);
    CHECK(driver->entries().cuGraphAddNode == nullptr);
  }
  check_clean();
}
