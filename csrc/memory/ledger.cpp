#include "memory/ledger.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1; the headers of some C libraries are older
#endif

namespace rose::memory {

namespace {

constexpr std::uint64_t kLedgerMagic = 0x3152474c45534f52;  // "ROSELGR1", little endian
constexpr std::uint32_t kLedgerVersion = 3;
// A change takes microseconds. After this many failed reads, the writer must have died.
constexpr int kReadsMax = 10'000;
// The reader pauses after every kReadsPerNap attempts, for about 15 ms in total, because the writer
// may have been descheduled within a change.
constexpr int kReadsPerNap = 64;
constexpr long kNapNs = 50'000;

// Without these seals, a process with the descriptor could write to the memfd, or shrink it while
// another process reads.
constexpr int kLedgerSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
constexpr std::size_t kPartitionsAt = sizeof(LedgerHeaderWire);
constexpr std::size_t kSlabsAt = kPartitionsAt + kPartitionsMax * sizeof(PartitionRecordWire);

std::size_t ledger_bytes(std::int32_t slab_count) noexcept {
  return kSlabsAt + static_cast<std::size_t>(slab_count) * sizeof(SlabRecordWire);
}

using NameWords = std::array<std::uint64_t, kNameBytes / sizeof(std::uint64_t)>;

NameWords words_of(const std::string& name) noexcept {
  NameWords words{};
  std::memcpy(words.data(), name.data(), std::min(name.size(), kNameBytes));
  return words;
}

std::string name_of(const NameWords& words) noexcept {
  char name[kNameBytes];
  std::memcpy(name, words.data(), kNameBytes);
  return {name, ::strnlen(name, kNameBytes)};
}

void write_partition(PartitionRecordWire& to, const PartitionRecord& from) noexcept {
  constexpr auto kRelease = std::memory_order_release;
  const Partition& one = from.partition;
  to.id.store(one.id, kRelease);
  to.is_live.store(one.is_live ? 1 : 0, kRelease);
  const NameWords words = words_of(one.name);
  for (std::size_t i = 0; i < words.size(); ++i) to.name[i].store(words[i], kRelease);
  to.reserve_slabs.store(one.reserve_slabs, kRelease);
  to.limit_slabs.store(one.limit_slabs, kRelease);
  to.held.store(one.held, kRelease);
  to.quarantined.store(one.quarantined, kRelease);
  to.leases.store(from.leases, kRelease);
  to.free_blocks.store(from.free_blocks, kRelease);
  to.used_blocks.store(from.used_blocks, kRelease);
  to.pins.store(from.pins.count, kRelease);
  to.oldest_pin_ns.store(from.pins.oldest_ns, kRelease);
  to.revocation.store(from.revocation.id, kRelease);
  to.wanted.store(from.revocation.wanted, kRelease);
  to.pending.store(from.revocation.pending, kRelease);
  to.deadline_ns.store(from.revocation.deadline_ns, kRelease);
  to.due_ns.store(from.revocation.due_ns, kRelease);
}

PartitionRecord read_partition(const PartitionRecordWire& from) noexcept {
  constexpr auto kAcquire = std::memory_order_acquire;
  PartitionRecord to;
  to.partition.id = from.id.load(kAcquire);
  to.partition.is_live = from.is_live.load(kAcquire) != 0;
  NameWords words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = from.name[i].load(kAcquire);
  to.partition.name = name_of(words);
  to.partition.reserve_slabs = from.reserve_slabs.load(kAcquire);
  to.partition.limit_slabs = from.limit_slabs.load(kAcquire);
  to.partition.held = from.held.load(kAcquire);
  to.partition.quarantined = from.quarantined.load(kAcquire);
  to.leases = from.leases.load(kAcquire);
  to.free_blocks = from.free_blocks.load(kAcquire);
  to.used_blocks = from.used_blocks.load(kAcquire);
  to.pins = {from.pins.load(kAcquire), from.oldest_pin_ns.load(kAcquire)};
  to.revocation = {from.revocation.load(kAcquire), from.wanted.load(kAcquire),
                   from.pending.load(kAcquire), from.deadline_ns.load(kAcquire),
                   from.due_ns.load(kAcquire)};
  return to;
}

Result<struct stat> stat_of(const FileDescriptor& fd) noexcept {
  struct stat about{};
  if (::fstat(fd.get(), &about) != 0) return from_errno("fstat", errno);
  return about;
}

Status check_record(const SlabRecord& record, SlabId slab, std::uint64_t epoch) noexcept {
  const std::string name = "slab " + std::to_string(slab);
  if (!is_at_rest(record.state))
    return Status::corrupt(name + " is in a state that is never published");
  if ((record.owner < 0) != (record.state == SlabState::kUnowned)) {
    return Status::corrupt(name + " has a state that does not match its owner");
  }
  const bool is_lent = record.state == SlabState::kGranted || record.state == SlabState::kRevoking;
  if (is_lent != (record.lease_epoch != 0) || record.lease_epoch > epoch) {
    return Status::corrupt(name + " has a lease_epoch that does not match its state");
  }
  if (is_lent != (record.lease_id != 0)) {
    return Status::corrupt(name + " has a lease that does not match its state");
  }
  return {};
}

// Checks that every slab belongs to a partition of the table, and that each partition's counts
// match.
Status check_partitions(const LedgerView::Moment& moment) noexcept {
  std::vector<PartitionRecord> left = moment.partitions;
  for (std::size_t slab = 0; slab < moment.slabs.size(); ++slab) {
    const SlabRecord& record = moment.slabs[slab];
    if (record.owner == kNobody) continue;
    const auto owner = std::ranges::find(
        left, record.owner, [](const PartitionRecord& one) { return one.partition.id; });
    if (owner == left.end()) {
      return Status::corrupt("slab " + std::to_string(slab) + " belongs to no partition");
    }
    --(is_held(record.state) ? owner->partition.held : owner->partition.quarantined);
  }
  for (const PartitionRecord& one : left) {
    if (one.partition.held == 0 && one.partition.quarantined == 0) continue;
    return Status::corrupt("partition " + std::to_string(one.partition.id) +
                           " holds a number of slabs that differs from its count");
  }
  return {};
}

}  // namespace

// ---- writing

Result<Ledger> Ledger::create(PoolShape shape) noexcept {
  const std::size_t size_bytes = ledger_bytes(shape.slab_count);
  Result<FileDescriptor> fd = create_memfd("rose-ledger", size_bytes);
  if (!fd.ok()) return fd.status();
  Result<Mapping> mapping = Mapping::create(fd.value(), size_bytes, Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  if (::fcntl(fd.value().get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return from_errno("fcntl(F_SEAL_FUTURE_WRITE), which needs Linux 5.1", errno);
  }
  const Result<struct stat> about = stat_of(fd.value());
  if (!about.ok()) return about.status();
  auto* header = new (mapping.value().data()) LedgerHeaderWire{};
  Ledger ledger{fd.take(), mapping.take()};
  for (std::size_t slot = 0; slot < kPartitionsMax; ++slot) {
    (new (&ledger.partition(slot)) PartitionRecordWire{})->id.store(kNobody);
  }
  for (SlabId slab = 0; slab < shape.slab_count; ++slab) {
    (new (&ledger.record(slab)) SlabRecordWire{})->owner.store(kNobody);
  }
  header->version = kLedgerVersion;
  header->slab_count = shape.slab_count;
  header->slab_bytes = shape.slab_bytes;
  header->header_slabs = shape.header_slabs;
  header->free.store(static_cast<std::uint32_t>(shape.slab_count), std::memory_order_release);
  header->pool = static_cast<std::uint64_t>(about.value().st_ino);
  header->magic = kLedgerMagic;
  return ledger;
}

// Release stores here and acquire loads in the reader, without fences: a reader that sees a new
// record also sees the odd sequence before it.
void Ledger::publish(const LedgerChange& change) noexcept {
  LedgerHeaderWire& head = header();
  const std::uint32_t sequence = head.sequence.load(std::memory_order_relaxed);
  head.sequence.store(sequence + 1, std::memory_order_relaxed);
  for (const SlabId slab : change.changed) {
    const SlabRecord& from = change.slabs[static_cast<std::size_t>(slab)];
    SlabRecordWire& to = record(slab);
    to.owner.store(from.owner, std::memory_order_release);
    to.state.store(static_cast<std::uint32_t>(from.state), std::memory_order_release);
    to.lease_epoch.store(from.lease_epoch, std::memory_order_release);
    to.generation.store(from.generation, std::memory_order_release);
    to.lease_id.store(from.lease_id, std::memory_order_release);
  }
  for (std::size_t slot = 0; slot < kPartitionsMax; ++slot) {
    if (slot < change.partitions.size()) {
      write_partition(partition(slot), change.partitions[slot]);
    } else {
      partition(slot).id.store(kNobody, std::memory_order_release);
    }
  }
  head.epoch.store(change.epoch, std::memory_order_release);
  head.free.store(change.counts.free, std::memory_order_release);
  head.owned.store(change.counts.owned, std::memory_order_release);
  head.quarantined.store(change.counts.quarantined, std::memory_order_release);
  head.changed_ns.store(change.now_ns, std::memory_order_release);
  head.sequence.store(sequence + 2, std::memory_order_release);
}

LedgerHeaderWire& Ledger::header() const noexcept {
  return *reinterpret_cast<LedgerHeaderWire*>(mapping_.data());
}

PartitionRecordWire& Ledger::partition(std::size_t slot) noexcept {
  return reinterpret_cast<PartitionRecordWire*>(mapping_.data() + kPartitionsAt)[slot];
}

SlabRecordWire& Ledger::record(SlabId slab) noexcept {
  return reinterpret_cast<SlabRecordWire*>(mapping_.data() +
                                           kSlabsAt)[static_cast<std::size_t>(slab)];
}

// ---- reading

Result<LedgerView> LedgerView::open(const FileDescriptor& fd) noexcept {
  const Result<struct stat> about = stat_of(fd);
  if (!about.ok()) return about.status();
  const auto size_bytes = static_cast<std::size_t>(about.value().st_size);
  if (size_bytes < kSlabsAt) {
    return Status::corrupt("the descriptor is no ledger: it has " + std::to_string(size_bytes) +
                           " bytes, fewer than a ledger's header");
  }
  Result<Mapping> mapping = Mapping::create(fd, size_bytes, Access::kRead);
  if (!mapping.ok()) return mapping.status();
  LedgerView view{mapping.take()};
  const LedgerHeaderWire& head = view.header();
  if (head.magic != kLedgerMagic) {
    return Status::corrupt("the descriptor is no ledger: it does not start with \"ROSELGR1\"");
  }
  if (head.version != kLedgerVersion) {
    return Status::corrupt("the ledger must have version " + std::to_string(kLedgerVersion) +
                           ", got " + std::to_string(head.version) +
                           ": run the same release of rose in both processes");
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);  // only a memfd has seals
  if (seals < 0 || (seals & kLedgerSeals) != kLedgerSeals)
    return Status::corrupt("the ledger is not sealed: other processes could write to it");
  if (head.slab_count < 1 || ledger_bytes(head.slab_count) != size_bytes) {
    return Status::corrupt("the ledger's size of " + std::to_string(size_bytes) +
                           " bytes does not match its " + std::to_string(head.slab_count) +
                           " slabs");
  }
  return view;
}

PoolShape LedgerView::shape() const noexcept {
  const LedgerHeaderWire& head = header();
  return {head.slab_bytes, head.slab_count, head.header_slabs};
}

void LedgerView::read_into(Moment& moment) const noexcept {
  const LedgerHeaderWire& head = header();
  for (std::size_t slab = 0; slab < moment.slabs.size(); ++slab) {
    const SlabRecordWire& from = record(static_cast<SlabId>(slab));
    moment.slabs[slab] = {from.owner.load(std::memory_order_acquire),
                          static_cast<SlabState>(from.state.load(std::memory_order_acquire)),
                          from.lease_epoch.load(std::memory_order_acquire),
                          from.generation.load(std::memory_order_acquire),
                          from.lease_id.load(std::memory_order_acquire)};
  }
  moment.partitions.clear();
  for (std::size_t slot = 0; slot < kPartitionsMax; ++slot) {
    PartitionRecord one = read_partition(partition(slot));
    if (one.partition.id != kNobody) moment.partitions.push_back(std::move(one));
  }
  moment.epoch = head.epoch.load(std::memory_order_acquire);
  moment.counts = {head.free.load(std::memory_order_acquire),
                   head.owned.load(std::memory_order_acquire),
                   head.quarantined.load(std::memory_order_acquire)};
  moment.changed_ns = head.changed_ns.load(std::memory_order_acquire);
}

// Calls `read` until no change came in between.
template <typename Read>
Status LedgerView::at_one_moment(const Read& read) const noexcept {
  const LedgerHeaderWire& head = header();
  for (int attempt = 0; attempt < kReadsMax; ++attempt) {
    const std::uint32_t before = head.sequence.load(std::memory_order_acquire);
    if (before % 2 == 0) {
      read();
      if (head.sequence.load(std::memory_order_acquire) == before) return {};
    }
    if (attempt % kReadsPerNap == kReadsPerNap - 1) {
      const timespec nap{0, kNapNs};
      ::nanosleep(&nap, nullptr);
    }
  }
  return Status::unavailable("the ledger is inconsistent: its writer stopped within a change");
}

Result<LedgerView::Moment> LedgerView::read() const noexcept {
  Moment moment;
  moment.slabs.resize(static_cast<std::size_t>(shape().slab_count));
  ROSE_TRY(at_one_moment([&] { read_into(moment); }));
  return moment;
}

Result<std::optional<PartitionRecord>> LedgerView::read(PartitionId id) const noexcept {
  std::optional<PartitionRecord> found;
  ROSE_TRY(at_one_moment([&] {
    found.reset();
    for (std::size_t slot = 0; slot < kPartitionsMax && !found.has_value(); ++slot) {
      if (partition(slot).id.load(std::memory_order_acquire) != id) continue;
      found = read_partition(partition(slot));
    }
  }));
  return found;
}

Status LedgerView::audit() const noexcept {
  const Result<Moment> moment = read();
  return moment.ok() ? audit(moment.value()) : moment.status();
}

Status LedgerView::audit(const Moment& moment) noexcept {
  LedgerCounts found;
  for (std::size_t slab = 0; slab < moment.slabs.size(); ++slab) {
    const SlabRecord& record = moment.slabs[slab];
    ROSE_TRY(check_record(record, static_cast<SlabId>(slab), moment.epoch));
    if (record.state == SlabState::kUnowned) ++found.free;
    if (is_held(record.state)) ++found.owned;
    if (record.state == SlabState::kQuarantined) ++found.quarantined;
  }
  const LedgerCounts& stored = moment.counts;
  if (found.free != stored.free || found.owned != stored.owned ||
      found.quarantined != stored.quarantined) {
    return Status::corrupt("the counts of the ledger differ from its records");
  }
  if (std::uint64_t{stored.free} + stored.owned + stored.quarantined != moment.slabs.size()) {
    return Status::corrupt("free + owned + quarantined slabs are not all slabs");
  }
  return check_partitions(moment);
}

const LedgerHeaderWire& LedgerView::header() const noexcept {
  return *reinterpret_cast<const LedgerHeaderWire*>(mapping_.data());
}

const PartitionRecordWire& LedgerView::partition(std::size_t slot) const noexcept {
  return reinterpret_cast<const PartitionRecordWire*>(mapping_.data() + kPartitionsAt)[slot];
}

const SlabRecordWire& LedgerView::record(SlabId slab) const noexcept {
  return reinterpret_cast<const SlabRecordWire*>(mapping_.data() +
                                                 kSlabsAt)[static_cast<std::size_t>(slab)];
}

}  // namespace rose::memory
