// A borrower's access: its lent slabs, as zeros, and nothing else.
#include "memory/mapped_window.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "memory/faulty.h"
#include "memory/host_memfd.h"
#include "memory/pool.h"
#include "memory/scrub.h"

using rose::Code;
using rose::FileDescriptor;
using rose::Result;
using rose::Status;
using rose::memory::FaultPlan;
using rose::memory::FaultyBackend;
using rose::memory::HostMemfd;
using rose::memory::MappedWindow;
using rose::memory::Pool;
using rose::memory::PoolShape;
using rose::memory::SlabId;

namespace {

constexpr std::size_t kSlab = 65536;
constexpr PoolShape kShape{kSlab, 5, 2};
using Plan = std::shared_ptr<FaultPlan>;

std::unique_ptr<FaultyBackend> backend(const Plan& plan) {
  return std::make_unique<FaultyBackend>(std::make_unique<HostMemfd>(), plan);
}

Pool pool_of_slabs(const Plan& plan) { return Pool::create(backend(plan), kShape, kSlab).take(); }

// Never const: two addresses of one byte, so the compiler must keep neither in a register.
volatile std::byte* first_byte(std::byte* data, SlabId slab) {
  return data + kShape.slab_base(slab);
}

// A copy, because the status often dies at the end of the line.
std::string says(const Status& status) { return status.message(); }

// Whether a byte can be read: the kernel answers EFAULT instead of a signal.
bool is_readable(const std::byte* at) {
  std::array<int, 2> ends{};
  CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const FileDescriptor in{ends[0]};
  const FileDescriptor out{ends[1]};
  const ssize_t written = ::write(out.get(), at, 1);
  CHECK(written == 1 || errno == EFAULT);
  return written == 1;
}

}  // namespace

TEST(slab_is_there_from_take_to_sweep) {
  const auto plan = std::make_shared<FaultPlan>();
  const Pool pool = pool_of_slabs(plan);
  MappedWindow window = MappedWindow::create(backend(plan), kShape).take();
  CHECK_EQ(window.size_bytes(), pool.size_bytes());
  for (SlabId slab = 0; slab < 5; ++slab)
    CHECK(!is_readable(window.data() + kShape.slab_base(slab)));

  CHECK(window.take(3, pool.share_slab(3).take()).ok());
  *first_byte(pool.data(), 3) = std::byte{9};
  CHECK(*first_byte(window.data(), 3) == std::byte{9});
  *first_byte(window.data(), 3) = std::byte{8};
  CHECK(*first_byte(pool.data(), 3) == std::byte{8});
  CHECK(!is_readable(window.data() + kShape.slab_base(2)));
  CHECK(!is_readable(window.data() + kShape.slab_base(4)));

  CHECK(window.give(3).ok());
  CHECK(window.held().empty());
  CHECK_EQ(window.leaving(), 1);
  CHECK(is_readable(window.data() + kShape.slab_base(3)));  // lazily: not before the sweep
  CHECK_EQ(window.sweep(5), 1);
  CHECK_EQ(window.leaving(), 0);
  CHECK(!is_readable(window.data() + kShape.slab_base(3)));
  // Serving's own mapping was never removed.
  CHECK(*first_byte(pool.data(), 3) == std::byte{8});
}

TEST(slab_lent_again_before_its_sweep_stays_mapped) {
  const auto plan = std::make_shared<FaultPlan>();
  const Pool pool = pool_of_slabs(plan);
  MappedWindow window = MappedWindow::create(backend(plan), kShape).take();
  CHECK(window.take(1, pool.share_slab(1).take()).ok());
  CHECK(window.give(1).ok());
  const std::int64_t calls = plan->calls;
  FileDescriptor again = pool.share_slab(1).take();
  CHECK(window.take(1, std::move(again)).ok());
  CHECK_EQ(plan->calls, calls + 1);  // the export, and nothing of the window's
  CHECK_EQ(window.sweep(5), 0);
  CHECK_EQ(window.held().size(), 1u);
  // Released, lent and released again: it is unmapped once, after those released before it.
  CHECK(window.take(2, pool.share_slab(2).take()).ok());
  for (const SlabId slab : {1, 2}) CHECK(window.give(slab).ok());
  CHECK(window.take(1, pool.share_slab(1).take()).ok());
  for (int twice = 0; twice < 2; ++twice) CHECK(window.give(1).ok());
  CHECK_EQ(window.leaving(), 2);
  CHECK_EQ(window.sweep(1), 1);
  CHECK(!is_readable(window.data() + kShape.slab_base(2)));
  CHECK_EQ(window.sweep(5), 1);
}

TEST(sweep_takes_no_more_than_it_may) {
  const auto plan = std::make_shared<FaultPlan>();
  const Pool pool = pool_of_slabs(plan);
  MappedWindow window = MappedWindow::create(backend(plan), kShape).take();
  for (SlabId slab = 0; slab < 5; ++slab)
    CHECK(window.take(slab, pool.share_slab(slab).take()).ok());
  for (const SlabId slab : {4, 0, 2}) CHECK(window.give(slab).ok());
  CHECK_EQ(window.sweep(0), 0);
  CHECK_EQ(window.sweep(2), 2);
  CHECK(is_readable(window.data() + kShape.slab_base(2)));  // the last released one stays
  CHECK(!is_readable(window.data() + kShape.slab_base(4)));
  CHECK((window.held() == std::vector<SlabId>{1, 3}));
  CHECK_EQ(window.sweep(2), 1);
}

TEST(header_slab_is_the_tenants_own_and_stays) {
  const auto plan = std::make_shared<FaultPlan>();
  {
    const Pool pool = pool_of_slabs(plan);
    MappedWindow window = MappedWindow::create(backend(plan), kShape).take();
    CHECK(window.open_header(1, pool.share_header(1).take()).ok());
    CHECK(is_readable(window.data() + kSlab));
    CHECK(!is_readable(window.data()));
    CHECK_EQ(window.sweep(5), 0);
    CHECK(is_readable(window.data() + kSlab));
    CHECK(window.held().empty());
    const Status none = window.open_header(2, pool.share_header(1).take());
    CHECK_EQ(says(none), "the pool has no header slab 2");
    CHECK_EQ(says(pool.share_header(2).status()), "the pool has no header slab 2");
    CHECK(pool.share_header(-1).status().code() == Code::kInvalidArgument);
  }
  CHECK(plan->is_clean());
}

TEST(slabs_that_cannot_be_are_refused) {
  const auto plan = std::make_shared<FaultPlan>();
  const Pool pool = pool_of_slabs(plan);
  MappedWindow window = MappedWindow::create(backend(plan), kShape).take();
  CHECK_EQ(says(window.take(5, pool.share_slab(0).take())), "slab 5 does not exist");
  CHECK(window.give(-1).code() == Code::kInvalidArgument);
  CHECK_EQ(says(window.give(0)), "slab 0 is not mapped in this window");
  CHECK_EQ(says(pool.share_slab(5).status()), "slab 5 does not exist");
  CHECK_EQ(says(pool.scrub(-1)), "slab -1 does not exist");
  CHECK(window.take(0, rose::create_memfd("test", 2 * kSlab).take()).code() ==
        Code::kInvalidArgument);
  CHECK(window.held().empty());
  CHECK(MappedWindow::create(backend(plan), {kSlab, 0, 0}).status().code() ==
        Code::kInvalidArgument);

  const Pool large = Pool::create(backend(plan), kShape, 2 * kSlab).take();
  CHECK_EQ(says(large.share_slab(0).status()),
           "a slab cannot be shared alone: make the pool with memory objects of one slab each "
           "(object_bytes_max 65536)");
}

TEST(scrub_makes_one_slab_zeros) {
  const auto plan = std::make_shared<FaultPlan>();
  const Pool pool = pool_of_slabs(plan);
  std::memset(pool.data(), 0x5a, pool.size_bytes());
  CHECK(pool.scrub(2).ok());
  for (std::size_t at = 0; at < pool.size_bytes(); ++at) {
    const bool is_inside = at >= kShape.slab_base(2) && at < kShape.slab_base(3);
    CHECK(pool.data()[at] == (is_inside ? std::byte{0} : std::byte{0x5a}));
  }
}

TEST(scrub_fills_what_it_is_given_and_no_more) {
  alignas(rose::memory::kScrubAlignment) static std::array<std::byte, 133 * 64> bytes{};
  for (const std::size_t lines : {0, 1, 2, 3, 4, 63, 64, 65, 127, 128, 129, 131}) {
    bytes.fill(std::byte{7});
    rose::memory::scrub_host(bytes.data() + 64, 64 * lines);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      const bool is_inside = at >= 64 && at < 64 * (lines + 1);
      CHECK(bytes[at] == (is_inside ? std::byte{0} : std::byte{7}));
    }
  }
}

TEST(window_leaks_nothing_when_the_nth_call_fails) {
  const auto source = std::make_shared<FaultPlan>();
  const Pool pool = pool_of_slabs(source);
  constexpr std::int64_t kCalls = 1 + 2 * 3;  // one reservation; import and map of each
  for (std::int64_t n = 1; n <= kCalls + 1; ++n) {
    const auto plan = std::make_shared<FaultPlan>();
    plan->fail_call = n;
    const Status status = [&]() -> Status {
      Result<MappedWindow> window = MappedWindow::create(backend(plan), kShape);
      ROSE_TRY(window.status());
      ROSE_TRY(window.value().open_header(0, pool.share_header(0).take()));
      for (const SlabId slab : {1, 4}) {
        const Status taken = window.value().take(slab, pool.share_slab(slab).take());
        CHECK_EQ(is_readable(window.value().data() + kShape.slab_base(slab)), taken.ok());
        ROSE_TRY(taken);
      }
      return {};
    }();
    CHECK_EQ(status.ok(), n > kCalls);
    CHECK(plan->is_clean());
  }
}

TEST(many_loans_need_no_more_descriptors_than_one) {
  const auto plan = std::make_shared<FaultPlan>();
  const Pool pool = pool_of_slabs(plan);
  MappedWindow window = MappedWindow::create(backend(plan), kShape).take();
  const int before = pool.share_slab(0).value().get();
  for (int i = 0; i < 2000; ++i) {
    CHECK(window.take(0, pool.share_slab(0).take()).ok());
    CHECK(window.give(0).ok());
    CHECK_EQ(window.sweep(1), 1);
  }
  CHECK_EQ(pool.share_slab(0).value().get(), before);
}
