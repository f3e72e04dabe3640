// The pool and its back ends: contiguous, writable, and gone without a trace.
#include "memory/pool.h"

#include <unistd.h>

#include <cstring>
#include <memory>

#include "check.h"
#include "memory/faulty.h"
#include "memory/host_memfd.h"

using rose::Code;
using rose::FileDescriptor;
using rose::Result;
using rose::Status;
using rose::memory::FaultPlan;
using rose::memory::FaultyBackend;
using rose::memory::HostMemfd;
using rose::memory::PageHandle;
using rose::memory::Pool;
using rose::memory::PoolShape;
using rose::memory::VaRange;

namespace {

constexpr std::size_t kSlab = 65536;
constexpr PoolShape kShape{kSlab, 5, 2};

Result<Pool> create(const std::shared_ptr<FaultPlan>& plan, std::size_t object_bytes_max) {
  return Pool::create(std::make_unique<FaultyBackend>(std::make_unique<HostMemfd>(), plan), kShape,
                      object_bytes_max);
}

}  // namespace

TEST(pool_is_contiguous_and_writable) {
  const auto plan = std::make_shared<FaultPlan>();
  Result<Pool> pool = create(plan, 2 * kSlab);
  CHECK(pool.ok());
  CHECK_EQ(pool.value().size_bytes(), 7 * kSlab);
  CHECK_EQ(plan->live_objects, 4);  // 2 + 2 + 2 + 1 slabs
  std::memset(pool.value().data(), 0x5a, pool.value().size_bytes());
  CHECK(pool.value().data()[7 * kSlab - 1] == std::byte{0x5a});
}

TEST(moved_pool_gives_back_once) {
  const auto plan = std::make_shared<FaultPlan>();
  {
    Result<Pool> made = create(plan, kSlab);
    const Pool pool{made.take()};
    CHECK_EQ(plan->live_mappings, 7);
  }
  CHECK(plan->is_clean());
}

TEST(nothing_leaks_when_the_nth_call_fails) {
  const auto counting = std::make_shared<FaultPlan>();
  CHECK(create(counting, kSlab).ok());
  CHECK_EQ(counting->calls, 1 + 2 * 7 + 1);
  for (std::int64_t n = 1; n <= counting->calls; ++n) {
    const auto plan = std::make_shared<FaultPlan>();
    plan->fail_call = n;
    plan->failure = Status::unavailable("on purpose");
    const Result<Pool> pool = create(plan, kSlab);
    CHECK(pool.status().code() == Code::kUnavailable);
    CHECK_EQ(plan->calls, n);  // it stops at the first failure
    CHECK(plan->is_clean());
  }
}

TEST(impossible_shapes_are_refused) {
  const auto made = [](PoolShape shape) {
    return Pool::create(std::make_unique<HostMemfd>(), shape).status().code();
  };
  CHECK(made({kSlab + 1, 5, 2}) == Code::kInvalidArgument);
  CHECK(made({0, 5, 2}) == Code::kInvalidArgument);
  CHECK(made({kSlab, 0, 2}) == Code::kInvalidArgument);
  CHECK(made({kSlab, 5, -1}) == Code::kInvalidArgument);
  CHECK(made({std::size_t{1} << 62, 5, 2}) == Code::kInvalidArgument);
}

TEST(exported_memory_shows_the_same_bytes) {
  HostMemfd backend;
  const PageHandle handle = backend.create(kSlab).take();
  const PageHandle same = backend.import_fd(backend.export_fd(handle).take(), kSlab).take();
  const VaRange range = backend.reserve(2 * kSlab).take();
  CHECK(backend.map(range.base, handle).ok());
  CHECK(backend.map(range.base + kSlab, same).ok());
  // Two addresses of one byte: volatile, because the compiler takes them for two bytes.
  volatile std::byte* bytes = range.base;
  bytes[17] = std::byte{9};
  CHECK(bytes[kSlab + 17] == std::byte{9});
  backend.unmap(range);
  backend.release(handle);
  backend.release(same);
  backend.release_range(range);
}

TEST(import_checks_the_size) {
  HostMemfd backend;
  const PageHandle handle = backend.create(kSlab).take();
  Result<FileDescriptor> fd = backend.export_fd(handle);
  CHECK(backend.import_fd(fd.take(), 2 * kSlab).status().code() == Code::kInvalidArgument);
}

TEST(released_handle_is_no_longer_known) {
  HostMemfd backend;
  const PageHandle handle = backend.create(kSlab).take();
  backend.release(handle);
  CHECK(backend.export_fd(handle).status().code() == Code::kInvalidArgument);
  CHECK(backend.map(nullptr, handle).code() == Code::kInvalidArgument);
}

TEST_MAIN()
