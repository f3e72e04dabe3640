#include "memory/ledger.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <new>
#include <string>
#include <utility>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1; the headers of some C libraries are older
#endif

namespace rose::memory {

namespace {

constexpr std::uint64_t kMagic = 0x3152474c45534f52;  // "ROSELGR1", little endian
constexpr std::uint32_t kVersion = 1;
// A change takes microseconds; a reader that loses this often has met a writer that died.
constexpr int kReadsMax = 10'000;

std::size_t ledger_bytes(std::int32_t slab_count) noexcept {
  return sizeof(LedgerHeaderWire) + static_cast<std::size_t>(slab_count) * sizeof(SlabRecordWire);
}

Status check_record(const SlabRecord& record, SlabId slab, std::uint64_t epoch) noexcept {
  const std::string name = "slab " + std::to_string(slab);
  if (!is_at_rest(record.state)) return Status::corrupt(name + " is in no state of rest");
  if ((record.owner < 0) != (record.state == SlabState::kUnowned)) {
    return Status::corrupt(name + " has a state that does not go with its owner");
  }
  const bool is_lent = record.state == SlabState::kGranted || record.state == SlabState::kRevoking;
  if (is_lent != (record.lease_epoch != 0) || record.lease_epoch > epoch) {
    return Status::corrupt(name + " has a lease_epoch that does not go with its state");
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
  auto* header = new (mapping.value().data()) LedgerHeaderWire{};
  auto* records = mapping.value().data() + sizeof(LedgerHeaderWire);
  for (SlabId slab = 0; slab < shape.slab_count; ++slab) {
    auto* record =
        new (records + static_cast<std::size_t>(slab) * sizeof(SlabRecordWire)) SlabRecordWire{};
    record->owner.store(-1, std::memory_order_relaxed);
  }
  header->version = kVersion;
  header->slab_count = shape.slab_count;
  header->slab_bytes = shape.slab_bytes;
  header->header_slabs = shape.header_slabs;
  header->free.store(static_cast<std::uint32_t>(shape.slab_count), std::memory_order_release);
  header->magic = kMagic;
  return Ledger{fd.take(), mapping.take()};
}

// Release stores on one side and acquire loads on the other, and no fences: whoever saw a new
// record has also seen the sequence go odd before it.
void Ledger::publish(const std::vector<SlabRecord>& records, const std::vector<SlabId>& changed,
                     LedgerCounts counts, std::uint64_t epoch) noexcept {
  LedgerHeaderWire& head = header();
  const std::uint32_t sequence = head.sequence.load(std::memory_order_relaxed);
  head.sequence.store(sequence + 1, std::memory_order_relaxed);
  for (const SlabId slab : changed) {
    const SlabRecord& from = records[static_cast<std::size_t>(slab)];
    SlabRecordWire& to = record(slab);
    to.owner.store(from.owner, std::memory_order_release);
    to.state.store(static_cast<std::uint32_t>(from.state), std::memory_order_release);
    to.lease_epoch.store(from.lease_epoch, std::memory_order_release);
    to.generation.store(from.generation, std::memory_order_release);
  }
  head.epoch.store(epoch, std::memory_order_release);
  head.free.store(counts.free, std::memory_order_release);
  head.owned.store(counts.owned, std::memory_order_release);
  head.quarantined.store(counts.quarantined, std::memory_order_release);
  head.sequence.store(sequence + 2, std::memory_order_release);
}

LedgerHeaderWire& Ledger::header() noexcept {
  return *reinterpret_cast<LedgerHeaderWire*>(mapping_.data());
}

SlabRecordWire& Ledger::record(SlabId slab) noexcept {
  return reinterpret_cast<SlabRecordWire*>(
      mapping_.data() + sizeof(LedgerHeaderWire))[static_cast<std::size_t>(slab)];
}

// ---- reading

Result<LedgerView> LedgerView::open(const FileDescriptor& fd) noexcept {
  struct stat about{};
  if (::fstat(fd.get(), &about) != 0) return from_errno("fstat", errno);
  const auto size_bytes = static_cast<std::size_t>(about.st_size);
  if (size_bytes < sizeof(LedgerHeaderWire)) return Status::corrupt("too short for a ledger");
  Result<Mapping> mapping = Mapping::create(fd, size_bytes, Access::kRead);
  if (!mapping.ok()) return mapping.status();
  LedgerView view{mapping.take()};
  const LedgerHeaderWire& head = view.header();
  if (head.magic != kMagic) return Status::corrupt("not a ledger");
  if (head.version != kVersion) {
    return Status::corrupt("a ledger of version " + std::to_string(head.version) + ", not " +
                           std::to_string(kVersion));
  }
  if (head.slab_count < 1 || ledger_bytes(head.slab_count) != size_bytes) {
    return Status::corrupt("the size of the ledger does not go with its " +
                           std::to_string(head.slab_count) + " slabs");
  }
  return view;
}

PoolShape LedgerView::shape() const noexcept {
  const LedgerHeaderWire& head = header();
  return {head.slab_bytes, head.slab_count, head.header_slabs};
}

Result<LedgerView::Moment> LedgerView::read() const noexcept {
  const LedgerHeaderWire& head = header();
  Moment moment;
  moment.slabs.resize(static_cast<std::size_t>(head.slab_count));
  for (int attempt = 0; attempt < kReadsMax; ++attempt) {
    const std::uint32_t before = head.sequence.load(std::memory_order_acquire);
    if (before % 2 != 0) continue;
    for (SlabId slab = 0; slab < head.slab_count; ++slab) {
      const SlabRecordWire& from = record(slab);
      moment.slabs[static_cast<std::size_t>(slab)] = {
          from.owner.load(std::memory_order_acquire),
          static_cast<SlabState>(from.state.load(std::memory_order_acquire)),
          from.lease_epoch.load(std::memory_order_acquire),
          from.generation.load(std::memory_order_acquire)};
    }
    moment.epoch = head.epoch.load(std::memory_order_acquire);
    moment.counts = {head.free.load(std::memory_order_acquire),
                     head.owned.load(std::memory_order_acquire),
                     head.quarantined.load(std::memory_order_acquire)};
    if (head.sequence.load(std::memory_order_acquire) == before) return moment;
  }
  return Status::unavailable("the ledger never held still: its writer stopped in a change");
}

Status LedgerView::audit() const noexcept {
  Result<Moment> read_now = read();
  if (!read_now.ok()) return read_now.status();
  const Moment& moment = read_now.value();
  LedgerCounts found;
  for (std::size_t slab = 0; slab < moment.slabs.size(); ++slab) {
    const SlabRecord& record = moment.slabs[slab];
    ROSE_TRY(check_record(record, static_cast<SlabId>(slab), moment.epoch));
    if (record.state == SlabState::kUnowned) ++found.free;
    if (is_held(record.state)) ++found.owned;
    if (record.state == SlabState::kQuarantined) ++found.quarantined;
  }
  const LedgerCounts& told = moment.counts;
  if (found.free != told.free || found.owned != told.owned ||
      found.quarantined != told.quarantined) {
    return Status::corrupt("the counts of the ledger are not those of its records");
  }
  if (std::uint64_t{told.free} + told.owned + told.quarantined != moment.slabs.size()) {
    return Status::corrupt("free + owned + quarantined is not all");
  }
  return {};
}

const LedgerHeaderWire& LedgerView::header() const noexcept {
  return *reinterpret_cast<const LedgerHeaderWire*>(mapping_.data());
}

const SlabRecordWire& LedgerView::record(SlabId slab) const noexcept {
  return reinterpret_cast<const SlabRecordWire*>(
      mapping_.data() + sizeof(LedgerHeaderWire))[static_cast<std::size_t>(slab)];
}

}  // namespace rose::memory
