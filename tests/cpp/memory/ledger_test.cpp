// The ledger: everybody reads, only the arbiter writes, and invalid content is detected.
#include "memory/ledger.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "check.h"

using rose::Access;
using rose::Code;
using rose::FileDescriptor;
using rose::Mapping;
using rose::Result;
using rose::memory::Ledger;
using rose::memory::LedgerHeaderWire;
using rose::memory::LedgerView;
using rose::memory::PartitionRecord;
using rose::memory::PartitionRecordWire;
using rose::memory::PoolShape;
using rose::memory::SlabId;
using rose::memory::SlabRecord;
using rose::memory::SlabRecordWire;
using rose::memory::SlabState;

namespace {

constexpr PoolShape kShape{4096, 3, 1};

LedgerView view_of(const Ledger& ledger) { return LedgerView::open(ledger.share().take()).take(); }

PartitionRecord partition_of(std::int32_t id, std::int32_t held, std::int32_t quarantined) {
  return {{id, "one with a name of more than 24 bytes", 0, 3, held, quarantined, true},
          1,
          5,
          7,
          {4, 13},
          {9, 3, 2, 11, 10}};
}

constexpr std::size_t kSlabsAt = sizeof(LedgerHeaderWire) + 8 * sizeof(PartitionRecordWire);

}  // namespace

TEST(new_ledger_is_all_free) {
  const Ledger ledger = Ledger::create(kShape).take();
  const LedgerView view = view_of(ledger);
  CHECK(view.audit().ok());
  CHECK_EQ(view.shape().slab_count, 3);
  const LedgerView::Moment moment = view.read().take();
  CHECK_EQ(moment.counts.free, 3);
  CHECK_EQ(moment.slabs[2].owner, -1);
}

TEST(published_records_are_seen) {
  Ledger ledger = Ledger::create(kShape).take();
  const LedgerView view = view_of(ledger);
  const std::vector<SlabRecord> records{
      {0, SlabState::kOwned, 0, 1, 0}, {1, SlabState::kGranted, 7, 2, 4}, {}};
  const std::vector<PartitionRecord> partitions{partition_of(0, 1, 0), partition_of(1, 1, 0)};
  ledger.publish({records, {0, 1}, {1, 2, 0}, 8, partitions, 77});
  CHECK(view.audit().ok());
  const LedgerView::Moment moment = view.read().take();
  CHECK_EQ(moment.epoch, 8);
  CHECK_EQ(moment.slabs[1].owner, 1);
  CHECK_EQ(moment.slabs[1].lease_epoch, 7);
  CHECK_EQ(moment.slabs[1].generation, 2);
  CHECK_EQ(moment.slabs[1].lease_id, 4);
  CHECK_EQ(moment.changed_ns, 77);
  CHECK_EQ(moment.partitions.size(), 2);
  const PartitionRecord& one = moment.partitions[1];
  CHECK_EQ(one.partition.name, "one with a name of more ");
  CHECK_EQ(one.partition.limit_slabs, 3);
  CHECK_EQ(one.leases, 1);
  CHECK_EQ(one.free_blocks, 5);
  CHECK_EQ(one.used_blocks, 7);
  CHECK_EQ(one.revocation.id, 9);
  CHECK_EQ(one.revocation.pending, 2);
  CHECK_EQ(one.revocation.deadline_ns, 11);
  CHECK_EQ(one.revocation.due_ns, 10);
  CHECK_EQ(one.pins.count, 4);
  CHECK_EQ(one.pins.oldest_ns, 13);
}

TEST(audit_finds_what_cannot_be) {
  const auto code_of = [](SlabRecord record, rose::memory::LedgerCounts counts) {
    Ledger ledger = Ledger::create(kShape).take();
    const auto held = static_cast<std::int32_t>(counts.owned);
    const auto late = static_cast<std::int32_t>(counts.quarantined);
    const std::vector<PartitionRecord> partitions{partition_of(0, held, late)};
    ledger.publish({{record, {}, {}}, {0}, counts, 5, partitions, 1});
    return view_of(ledger).audit().code();
  };
  CHECK(code_of({0, SlabState::kOwned, 0, 0}, {2, 1, 0}) == Code::kOk);
  CHECK(code_of({0, SlabState::kUnowned, 0, 0}, {3, 0, 0}) == Code::kCorrupt);
  CHECK(code_of({-1, SlabState::kOwned, 0, 0}, {2, 1, 0}) == Code::kCorrupt);
  CHECK(code_of({0, SlabState::kQuiesced, 0, 0}, {2, 1, 0}) == Code::kCorrupt);
  CHECK(code_of({0, static_cast<SlabState>(99), 0, 0}, {2, 1, 0}) == Code::kCorrupt);
  CHECK(code_of({0, SlabState::kGranted, 0, 0}, {2, 1, 0}) == Code::kCorrupt);     // no lease
  CHECK(code_of({0, SlabState::kGranted, 6, 0, 1}, {2, 1, 0}) == Code::kCorrupt);  // of the future
  CHECK(code_of({0, SlabState::kGranted, 5, 0, 0}, {2, 1, 0}) == Code::kCorrupt);  // which lease?
  CHECK(code_of({0, SlabState::kGranted, 5, 0, 1}, {2, 1, 0}) == Code::kOk);
  // the number of no partition
  CHECK(code_of({3, SlabState::kOwned, 0, 0}, {2, 1, 0}) == Code::kCorrupt);
  CHECK(code_of({0, SlabState::kOwned, 0, 0}, {3, 0, 0}) == Code::kCorrupt);
  CHECK(code_of({0, SlabState::kQuarantined, 0, 0}, {2, 0, 1}) == Code::kOk);
}

TEST(no_descriptor_passed_on_can_be_written_through) {
  const Ledger ledger = Ledger::create(kShape).take();
  const FileDescriptor fd = ledger.share().take();
  CHECK(!Mapping::create(fd, 64, Access::kReadWrite).ok());
  CHECK(::pwrite(fd.get(), "x", 1, 0) == -1);
  void* data = ::mmap(nullptr, 64, PROT_READ, MAP_SHARED, fd.get(), 0);
  CHECK(data != MAP_FAILED);
  CHECK(::mprotect(data, 64, PROT_READ | PROT_WRITE) != 0);
  ::munmap(data, 64);
}

TEST(what_is_no_ledger_is_refused) {
  const auto opened = [](std::size_t bytes, auto change) {
    const FileDescriptor fd = rose::create_memfd("test", bytes).take();
    const Mapping mapping = Mapping::create(fd, bytes, Access::kReadWrite).take();
    CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0);
    if (bytes >= sizeof(LedgerHeaderWire)) {
      change(*reinterpret_cast<LedgerHeaderWire*>(mapping.data()));
    }
    return LedgerView::open(fd).status().code();
  };
  const auto legal = [](LedgerHeaderWire& head) {
    head.magic = 0x3152474c45534f52;
    head.version = 3;
    head.slab_count = 2;
  };
  constexpr std::size_t kBytes = kSlabsAt + 2 * sizeof(SlabRecordWire);
  CHECK(opened(kBytes, legal) == Code::kOk);
  CHECK(opened(10, legal) == Code::kCorrupt);
  CHECK(opened(kBytes + 32, legal) == Code::kCorrupt);
  CHECK(opened(kBytes, [&](LedgerHeaderWire& h) { legal(h), h.magic = 1; }) == Code::kCorrupt);
  CHECK(opened(kBytes, [&](LedgerHeaderWire& h) { legal(h), h.version = 2; }) == Code::kCorrupt);
  CHECK(opened(kBytes, [&](LedgerHeaderWire& h) { legal(h), h.slab_count = -1; }) ==
        Code::kCorrupt);
}

TEST(ledger_that_could_still_be_written_is_refused) {
  constexpr std::size_t kBytes = kSlabsAt + sizeof(SlabRecordWire);
  const FileDescriptor fd = rose::create_memfd("test", kBytes).take();
  const Mapping mapping = Mapping::create(fd, kBytes, Access::kReadWrite).take();
  auto* head = reinterpret_cast<LedgerHeaderWire*>(mapping.data());
  head->magic = 0x3152474c45534f52;
  head->version = 3;
  head->slab_count = 1;
  CHECK(LedgerView::open(fd).status().code() == Code::kCorrupt);
}

TEST(writer_that_stopped_in_a_change_is_noticed) {
  constexpr std::size_t kBytes = kSlabsAt + sizeof(SlabRecordWire);
  const FileDescriptor fd = rose::create_memfd("test", kBytes).take();
  const Mapping mapping = Mapping::create(fd, kBytes, Access::kReadWrite).take();
  auto* head = reinterpret_cast<LedgerHeaderWire*>(mapping.data());
  head->magic = 0x3152474c45534f52;
  head->version = 3;
  head->slab_count = 1;
  head->sequence.store(3);
  CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0);
  CHECK(LedgerView::open(fd).take().audit().code() == Code::kUnavailable);
}

TEST(reader_sees_one_moment_while_another_thread_writes) {
  Ledger ledger = Ledger::create(kShape).take();
  const LedgerView view = view_of(ledger);
  std::atomic<bool> is_done{false};
  std::thread writer{[&] {
    std::vector<SlabRecord> records(3);
    const std::vector<SlabId> all{0, 1, 2};
    for (std::uint64_t epoch = 1; !is_done.load(); ++epoch) {
      const bool is_owned = epoch % 2 == 0;
      for (SlabRecord& record : records) {
        record.owner = is_owned ? 0 : -1;
        record.state = is_owned ? SlabState::kOwned : SlabState::kUnowned;
      }
      const std::uint32_t owned = is_owned ? 3 : 0;
      const std::vector<PartitionRecord> partitions{
          partition_of(0, static_cast<std::int32_t>(owned), 0)};
      ledger.publish({records, all, {3 - owned, owned, 0}, epoch, partitions, 1});
      // A pause in which a reader can finish, on one core too.
      for (int i = 0; i < 200; ++i) std::this_thread::yield();
    }
  }};
  for (int i = 0; i < 300; ++i) {
    const rose::Status status = view.audit();
    CHECK(status.ok() || status.code() == Code::kUnavailable);
  }
  is_done.store(true);
  writer.join();
  CHECK(view.audit().ok());
}
