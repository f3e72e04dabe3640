// Device memory behind a pool: the fake driver uses host memory, so its bytes are visible.
#include "memory/cuda_vmm.h"

#include <fcntl.h>

#include "driver/fixture.h"
#include "memory/faulty.h"
#include "memory/host_memfd.h"

using namespace rose;
using namespace rose::driver;
using namespace rose::test;
using rose::memory::CudaVmm;
using rose::memory::FaultPlan;
using rose::memory::FaultyBackend;
using rose::memory::HostMemfd;
using rose::memory::PageHandle;
using rose::memory::Pool;
using rose::memory::PoolExport;
using rose::memory::VaRange;

TEST(pool_is_one_range_of_device_memory) {
  {
    const DevicePtr device = open_device();
    const Pool pool = Pool::create(CudaVmm::create(device).take(), {kPage, 3, 1}, 2 * kPage).take();
    CHECK(!pool.is_on_host());
    CHECK_EQ(pool.size_bytes(), 4 * kPage);
    CHECK_EQ(std::string{fake().live()},
             "contexts 1\nhandles 2\nreservations 1\nmappings 2\nstreams 1\n");
    for (std::size_t slab = 0; slab < 4; ++slab) word(pool, slab * kPage / 4) = 7;
  }
  check_clean();
}

TEST(sizes_are_whole_pages_of_the_driver) {
  {
    const DevicePtr device = open_device();
    const auto backend = CudaVmm::create(device).take();
    CHECK_EQ(backend->granularity_bytes(), kPage);
    const std::string wrong =
        "the size of device memory must be a positive multiple of the driver's page of 2097152 "
        "bytes, got 2097153 bytes";
    CHECK_EQ(says(backend->create(kPage + 1).status()), wrong);
    CHECK_EQ(says(backend->reserve(kPage + 1).status()), wrong);
    CHECK(backend->import_fd(FileDescriptor{}, kPage + 1).status().code() ==
          Code::kInvalidArgument);
    CHECK(backend->create(0).status().code() == Code::kInvalidArgument);
    CHECK(Pool::create(CudaVmm::create(device).take(), {4096, 1, 0}).status().code() ==
          Code::kInvalidArgument);
  }
  check_clean();
}

TEST(the_header_of_a_pool_is_zeros) {
  {
    const DevicePtr device = open_device();
    const Pool pool = Pool::create(CudaVmm::create(device).take(), {kPage, 1, 2}).take();
    for (std::size_t i = 0; i < 2 * kPage / 4; i += 1021) CHECK_EQ(word(pool, i), 0u);
    CHECK_EQ(word(pool, 2 * kPage / 4), 0xA5A5A5A5u);
  }
  check_clean();
}

TEST(device_that_cannot_share_memory_is_refused) {
  const auto refusal = [](int attribute) {
    fake().reset();
    fake().set_attribute(attribute, 0);
    const DevicePtr device = Device::open(Driver::open().take(), 0).take();
    const Status status = CudaVmm::create(device).status();
    CHECK(status.code() == Code::kUnavailable);
    return status.message();
  };
  CHECK_EQ(refusal(kAttributeVirtualMemory),
           "CUDA device 0 (Fake GPU 0) has no virtual memory management, which rose's pool needs");
  CHECK_EQ(refusal(kAttributePosixFdHandles),
           "CUDA device 0 (Fake GPU 0) has no memory that file descriptors can share, which rose's "
           "pool needs");
  check_clean();
}

TEST(failed_access_undoes_the_mapping) {
  {
    const DevicePtr device = open_device();
    const auto backend = CudaVmm::create(device).take();
    const PageHandle handle = backend->create(kPage).take();
    const VaRange range = backend->reserve(kPage).take();
    fake().fail("cuMemSetAccess", 1, kOutOfMemory);
    CHECK_EQ(says(backend->map(range.base, handle)),
             "cuMemSetAccess: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
    CHECK(std::string{fake().live()}.find("mappings") == std::string::npos);
    CHECK(backend->map(range.base, handle).ok());
    backend->unmap(range);
    backend->release(handle);
    backend->release_range(range);
  }
  check_clean();
}

TEST(exported_memory_shows_the_same_bytes) {
  {
    const DevicePtr device = open_device();
    const auto owner = CudaVmm::create(device).take();
    const auto other = CudaVmm::create(device).take();
    const PageHandle handle = owner->create(kPage).take();
    FileDescriptor fd = owner->export_fd(handle).take();
    CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
    const PageHandle same = other->import_fd(std::move(fd), kPage).take();
    const VaRange range = owner->reserve(2 * kPage).take();
    CHECK(owner->map(range.base, handle).ok());
    CHECK(other->map(range.base + kPage, same).ok());
    volatile std::byte* bytes = range.base;
    bytes[17] = std::byte{9};
    CHECK(bytes[kPage + 17] == std::byte{9});
    owner->unmap({range.base, kPage});
    other->unmap({range.base + kPage, kPage});
    owner->release(handle);
    other->release(same);
    owner->release_range(range);
  }
  check_clean();
}

TEST(memory_smaller_than_was_said_shows_at_map) {
  {
    const DevicePtr device = open_device();
    const auto backend = CudaVmm::create(device).take();
    const PageHandle handle = backend->create(kPage).take();
    const PageHandle larger =
        backend->import_fd(backend->export_fd(handle).take(), 2 * kPage).take();
    const VaRange range = backend->reserve(2 * kPage).take();
    CHECK(backend->map(range.base, larger).code() == Code::kInvalidArgument);
    backend->release(handle);
    backend->release(larger);
    backend->release_range(range);
  }
  check_clean();
}

TEST(memory_is_on_the_device_and_open_to_it) {
  {
    fake().reset();
    fake().set_devices(2);
    const DevicePtr device = Device::open(Driver::open().take(), 1).take();
    const auto backend = CudaVmm::create(device).take();
    fake().set_memory(kPage);
    const PageHandle handle = backend->create(kPage).take();
    CHECK(backend->create(kPage).status().code() == Code::kOutOfMemory);
    CHECK(backend->export_fd(handle).ok());
    const VaRange range = backend->reserve(kPage).take();
    CHECK(backend->map(range.base, handle).ok());
    const std::string log = fake().log();
    CHECK(log.find("\n  on device 1\n") != std::string::npos);
    CHECK(log.find("\n  for device 1\n") != std::string::npos);
    backend->unmap(range);
    backend->release(handle);
    backend->release_range(range);
  }
  check_clean();
}

TEST(device_memory_fails_on_purpose_too) {
  {
    const DevicePtr device = open_device();
    for (std::int64_t n = 1; n <= 5; ++n) {
      const auto plan = std::make_shared<FaultPlan>();
      plan->fail_call = n;
      auto faulty = std::make_unique<FaultyBackend>(CudaVmm::create(device).take(), plan);
      CHECK(!faulty->is_on_host());
      CHECK(!Pool::create(std::move(faulty), {kPage, 2, 0}, kPage).ok());
      CHECK(plan->is_clean());
    }
  }
  check_clean();
}

TEST(device_pool_is_attached_with_the_same_bytes) {
  {
    const DevicePtr device = open_device();
    const Pool pool = Pool::create(CudaVmm::create(device).take(), {kPage, 3, 1}, 2 * kPage).take();
    for (std::size_t slab = 0; slab < 4; ++slab) {
      word(pool, slab * kPage / 4) = 7 + static_cast<std::uint32_t>(slab);
    }
    PoolExport shared = pool.share().take();
    CHECK_EQ(shared.objects.size(), 2u);
    CHECK(!shared.is_on_host);
    fake().reset();
    const Pool other = Pool::attach(CudaVmm::create(device).take(), std::move(shared)).take();
    const std::string log = fake().log();
    CHECK(log.find("cuMemCreate") == std::string::npos);
    CHECK(log.find("cuMemset") == std::string::npos);  // the header is in use
    for (std::size_t slab = 0; slab < 4; ++slab) {
      CHECK_EQ(word(other, slab * kPage / 4), 7 + slab);
    }
    CHECK_EQ(std::string{fake().live()},
             "contexts 1\nhandles 4\nreservations 2\nmappings 4\nstreams 2\n");
  }
  check_clean();
}

TEST(host_memory_is_no_device_pool) {
  {
    const DevicePtr device = open_device();
    const Pool pool = Pool::create(CudaVmm::create(device).take(), {kPage, 1, 0}).take();
    PoolExport foreign = pool.share().take();
    foreign.objects[0] = create_memfd("test", kPage).take();
    CHECK_EQ(says(Pool::attach(CudaVmm::create(device).take(), std::move(foreign)).status()),
             "cuMemImportFromShareableHandle: CUDA_ERROR_INVALID_VALUE (1): invalid argument");
    PoolExport host =
        Pool::create(std::make_unique<HostMemfd>(), {kPage, 1, 0}).take().share().take();
    CHECK_EQ(says(Pool::attach(CudaVmm::create(device).take(), std::move(host)).status()),
             "the pool is memory of the host, but this process maps memory of a device");
    CHECK_EQ(std::string{fake().live()},
             "contexts 1\nhandles 1\nreservations 1\nmappings 1\nstreams 1\n");
  }
  check_clean();
}
