// The pool and its back ends: contiguous, writable, and released without a trace.
#include "memory/pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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
using rose::memory::PoolExport;
using rose::memory::PoolShape;
using rose::memory::VaRange;

namespace {

constexpr std::size_t kSlab = 65536;
constexpr PoolShape kShape{kSlab, 5, 2};

Result<Pool> create(const std::shared_ptr<FaultPlan>& plan, std::size_t object_bytes_max) {
  return Pool::create(std::make_unique<FaultyBackend>(std::make_unique<HostMemfd>(), plan), kShape,
                      object_bytes_max);
}

Result<Pool> attach(const std::shared_ptr<FaultPlan>& plan, PoolExport from) {
  return Pool::attach(std::make_unique<FaultyBackend>(std::make_unique<HostMemfd>(), plan),
                      std::move(from));
}

// The number of the next new descriptor: it rises when one is left open.
int next_descriptor() { return FileDescriptor{::open("/dev/null", O_RDONLY | O_CLOEXEC)}.get(); }

}  // namespace

TEST(memory_that_cannot_be_given_back_is_an_error) {
  HostMemfd memory;
  const auto range = memory.reserve(1 << 21).take();
  CHECK(!memory.clear(range).ok());  // no object is mapped there
  memory.release_range(range);
}

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
  // Two addresses of one byte: volatile, because the compiler assumes two bytes.
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

TEST(handles_of_released_memory_are_used_again) {
  HostMemfd backend;
  const PageHandle kept = backend.create(kSlab).take();
  const PageHandle first = backend.create(kSlab).take();
  for (int i = 0; i < 10; ++i) {
    backend.release(first);
    backend.release(first);  // a second time changes nothing
    const PageHandle next = backend.create(kSlab).take();
    CHECK_EQ(next.value, first.value);
    CHECK(next.value != kept.value);
  }
  CHECK(backend.create(kSlab).take().value != first.value);
}

TEST(attached_pool_shows_the_same_bytes_at_the_same_distances) {
  const auto plan = std::make_shared<FaultPlan>();
  const Pool pool = create(plan, 2 * kSlab).take();
  volatile std::byte* here = pool.data();
  for (std::size_t slab = 0; slab < 7; ++slab)
    here[slab * kSlab + 5] = static_cast<std::byte>(slab + 1);
  const Pool other = attach(plan, pool.share().take()).take();
  CHECK(other.data() != pool.data());
  CHECK_EQ(other.size_bytes(), pool.size_bytes());
  CHECK_EQ(other.shape().header_slabs, 2);
  volatile std::byte* there = other.data();
  // The header's bytes too: an attaching process clears nothing.
  for (std::size_t slab = 0; slab < 7; ++slab) {
    CHECK(there[slab * kSlab + 5] == static_cast<std::byte>(slab + 1));
  }
  there[7 * kSlab - 1] = std::byte{9};
  CHECK(here[7 * kSlab - 1] == std::byte{9});
}

TEST(attached_pool_outlives_the_one_it_came_from) {
  const auto plan = std::make_shared<FaultPlan>();
  {
    std::optional<Pool> first{create(plan, kSlab).take()};
    first->data()[3 * kSlab] = std::byte{7};
    const Pool second = attach(plan, first->share().take()).take();
    first.reset();
    CHECK(second.data()[3 * kSlab] == std::byte{7});
    const Pool third = attach(plan, second.share().take()).take();
    CHECK(third.data()[3 * kSlab] == std::byte{7});
  }
  CHECK(plan->is_clean());
}

TEST(sharing_leaks_nothing_when_the_nth_call_fails) {
  const int before = next_descriptor();
  for (std::int64_t n = 1; n <= 4 + 1 + 2 * 4 + 1; ++n) {
    const auto plan = std::make_shared<FaultPlan>();
    {
      const Pool pool = create(plan, 2 * kSlab).take();
      const std::int64_t alive = plan->live_objects + plan->live_mappings + plan->live_ranges;
      plan->fail_call = plan->calls + n;
      Result<PoolExport> shared = pool.share();
      if (n > 4 + 1 + 2 * 4) {  // there is no such call
        CHECK(attach(plan, shared.take()).ok());
      } else if (n > 4) {
        CHECK(attach(plan, shared.take()).status().code() == Code::kOutOfMemory);
      } else {
        CHECK(shared.status().code() == Code::kOutOfMemory);
      }
      CHECK_EQ(plan->live_objects + plan->live_mappings + plan->live_ranges, alive);
    }
    CHECK(plan->is_clean());
    CHECK_EQ(next_descriptor(), before);
  }
}

TEST(pool_of_wrong_sizes_is_refused) {
  const auto plan = std::make_shared<FaultPlan>();
  const Pool pool = create(plan, 2 * kSlab).take();
  const auto refusal = [&](auto change) {
    PoolExport shared = pool.share().take();
    change(shared);
    const std::int64_t calls = plan->calls;
    const Status status = attach(plan, std::move(shared)).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_EQ(plan->calls, calls);  // before anything is made
    return status.message();
  };
  CHECK_EQ(refusal([](PoolExport& one) { one.objects.pop_back(); }),
           "each memory object needs one descriptor, got 3 descriptors for 4 memory objects");
  CHECK_EQ(
      refusal([](PoolExport& one) { one.sizes[0] += 1; }),
      "a memory object must be whole slabs of 65536 bytes within the remaining 458752 bytes of "
      "the pool, got 131073 bytes");
  CHECK_EQ(refusal([](PoolExport& one) { one.sizes[3] = 0; }),
           "a memory object must be whole slabs of 65536 bytes within the remaining 65536 bytes of "
           "the pool, got 0 bytes");
  CHECK_EQ(refusal([](PoolExport& one) { one.sizes[3] += kSlab; }),
           "a memory object must be whole slabs of 65536 bytes within the remaining 65536 bytes of "
           "the pool, got 131072 bytes");
  CHECK_EQ(refusal([](PoolExport& one) { one.shape.slab_count += 1; }),
           "the memory objects do not cover 65536 of 524288 bytes of the pool");
  CHECK_EQ(refusal([](PoolExport& one) { one.is_on_host = false; }),
           "the pool is memory of a device, but this process maps memory of the host");
  refusal([](PoolExport& one) { one.shape.slab_bytes = 0; });
}

TEST(foreign_descriptors_are_refused) {
  const auto plan = std::make_shared<FaultPlan>();
  const Pool pool = create(plan, kSlab).take();
  const auto refusal = [&](FileDescriptor foreign) {
    PoolExport shared = pool.share().take();
    shared.objects[4] = std::move(foreign);
    const std::int64_t alive = plan->live_objects;
    const Status status = attach(plan, std::move(shared)).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_EQ(plan->live_objects, alive);
    return status.message();
  };
  CHECK_EQ(refusal(rose::create_memfd("test", kSlab / 2).take()),
           "the descriptor of pool memory must have 65536 bytes, got 32768");
  const std::string unsealed = "the descriptor of pool memory must be a memfd whose size is sealed";
  FileDescriptor loose{::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  CHECK(::ftruncate(loose.get(), kSlab) == 0);
  CHECK_EQ(refusal(std::move(loose)), unsealed);
  CHECK_EQ(refusal(FileDescriptor{::open("/dev/zero", O_RDWR | O_CLOEXEC)}), unsealed);
  CHECK_EQ(refusal(FileDescriptor{}), unsealed);
}
