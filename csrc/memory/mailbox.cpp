#include "memory/mailbox.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <new>
#include <string>
#include <utility>

namespace rose::memory {

namespace {

constexpr std::uint64_t kMailboxMagic = 0x3158424d45534f52;  // "ROSEMBX1", little endian
constexpr std::uint32_t kMailboxVersion = 2;
constexpr int kMailboxSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// Attempts of close(). A tenant that enters or leaves the slab meanwhile makes an attempt fail. If
// all fail, the next sweep tries again.
constexpr int kTriesMax = 64;

std::size_t mailbox_bytes(std::int32_t slab_count) noexcept {
  return sizeof(MailboxHeaderWire) + static_cast<std::size_t>(slab_count) * sizeof(SlabWordWire);
}

constexpr std::uint64_t packed(SlabWord word) noexcept {
  return std::uint64_t{word.generation} << 32 | static_cast<std::uint32_t>(word.use);
}

Status check_header(const MailboxHeaderWire& head, PoolShape shape) noexcept {
  if (head.magic != kMailboxMagic) {
    return Status::corrupt("the descriptor is no mailbox: it does not start with \"ROSEMBX1\"");
  }
  if (head.version != kMailboxVersion) {
    return Status::corrupt("the mailbox must have version " + std::to_string(kMailboxVersion) +
                           ", got " + std::to_string(head.version) +
                           ": run the same release of rose in both processes");
  }
  if (head.slab_count != shape.slab_count || head.slab_bytes != shape.slab_bytes ||
      head.header_slabs != shape.header_slabs) {
    return Status::corrupt("the mailbox must be for a pool of " + std::to_string(shape.slab_count) +
                           " slabs of " + std::to_string(shape.slab_bytes) + " bytes and " +
                           std::to_string(shape.header_slabs) + " header slabs, got " +
                           std::to_string(head.slab_count) + " slabs of " +
                           std::to_string(head.slab_bytes) + " bytes and " +
                           std::to_string(head.header_slabs) + " header slabs");
  }
  if (head.partition < 0) {
    return Status::corrupt("the mailbox's partition must be at least 0, got " +
                           std::to_string(head.partition));
  }
  return {};
}

}  // namespace

Result<Mailbox> Mailbox::create(PoolShape shape, PartitionId partition,
                                std::uint64_t pool) noexcept {
  const std::size_t size_bytes = mailbox_bytes(shape.slab_count);
  Result<FileDescriptor> fd = create_memfd("rose-mailbox", size_bytes);
  if (!fd.ok()) return fd.status();
  // Without this seal a tenant could add seals that prevent later attachments.
  if (::fcntl(fd.value().get(), F_ADD_SEALS, F_SEAL_SEAL) != 0) {
    return from_errno("fcntl(F_SEAL_SEAL)", errno);
  }
  Result<Mapping> mapping = Mapping::create(fd.value(), size_bytes, Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  auto* header = new (mapping.value().data()) MailboxHeaderWire{};
  std::byte* words = mapping.value().data() + sizeof(MailboxHeaderWire);
  for (std::int32_t slab = 0; slab < shape.slab_count; ++slab) {
    auto* word = new (words + static_cast<std::size_t>(slab) * sizeof(SlabWordWire)) SlabWordWire{};
    word->rank.store(kNoRank, std::memory_order_relaxed);
  }
  header->version = kMailboxVersion;
  header->slab_count = shape.slab_count;
  header->slab_bytes = shape.slab_bytes;
  header->header_slabs = shape.header_slabs;
  header->partition = partition;
  header->pool = pool;
  header->magic = kMailboxMagic;
  return Mailbox{fd.take(), mapping.take()};
}

Result<Mailbox> Mailbox::open(const FileDescriptor& fd, PoolShape shape) noexcept {
  struct stat about{};
  if (::fstat(fd.get(), &about) != 0) return from_errno("fstat", errno);
  // Only a memfd has seals; without them the file could shrink under the mapping.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kMailboxSeals) != kMailboxSeals)
    return Status::corrupt("the mailbox is not sealed: other processes could resize it");
  const std::size_t size_bytes = mailbox_bytes(shape.slab_count);
  if (static_cast<std::size_t>(about.st_size) != size_bytes) {
    return Status::corrupt("the mailbox must have " + std::to_string(size_bytes) +
                           " bytes for this pool, got " + std::to_string(about.st_size));
  }
  Result<FileDescriptor> own = fd.duplicate();
  if (!own.ok()) return own.status();
  Result<Mapping> mapping = Mapping::create(own.value(), size_bytes, Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  Mailbox mailbox{own.take(), mapping.take()};
  ROSE_TRY(check_header(mailbox.header(), shape));
  return mailbox;
}

SlabWord Mailbox::word(SlabId slab) const noexcept {
  const std::uint64_t now = at(slab).word.load();
  return {static_cast<std::uint32_t>(now >> 32), static_cast<WordUse>(now & 0xffffffffu)};
}

bool Mailbox::swap(SlabId slab, std::uint32_t generation, WordUse from, WordUse to) const noexcept {
  std::uint64_t expected = packed({generation, from});
  return at(slab).word.compare_exchange_strong(expected, packed({generation, to}));
}

// ---- the arbiter's moves

void Mailbox::grant(SlabId slab, std::uint32_t generation) const noexcept {
  SlabWordWire& to = at(slab);
  to.used.store(0, std::memory_order_relaxed);
  to.rank.store(kNoRank, std::memory_order_relaxed);
  to.word.store(packed({generation, WordUse::kIdle}));
}

bool Mailbox::take_idle(SlabId slab, std::uint32_t generation) const noexcept {
  return swap(slab, generation, WordUse::kIdle, WordUse::kAbsent);
}

void Mailbox::close(SlabId slab, std::uint32_t generation) const noexcept {
  for (int tries = 0; tries < kTriesMax; ++tries) {
    if (take_idle(slab, generation)) return;
    if (swap(slab, generation, WordUse::kBusy, WordUse::kClosed)) return;
    const SlabWord now = word(slab);
    const bool has_moved = now.use == WordUse::kIdle || now.use == WordUse::kBusy;
    if (now.generation != generation || !has_moved) return;
  }
}

void Mailbox::clear(SlabId slab, std::uint32_t generation) const noexcept {
  at(slab).word.store(packed({generation, WordUse::kAbsent}));
}

// ---- the tenant's moves

bool Mailbox::enter(SlabId slab, std::uint32_t generation) const noexcept {
  return swap(slab, generation, WordUse::kIdle, WordUse::kBusy);
}

Leaving Mailbox::leave(SlabId slab, std::uint32_t generation) const noexcept {
  if (swap(slab, generation, WordUse::kBusy, WordUse::kIdle)) return Leaving::kStays;
  const bool is_home = swap(slab, generation, WordUse::kClosed, WordUse::kAbsent);
  return is_home ? Leaving::kHome : Leaving::kWasTaken;
}

bool Mailbox::give(SlabId slab, std::uint32_t generation) const noexcept {
  return swap(slab, generation, WordUse::kIdle, WordUse::kAbsent);
}

// ---- reports and hints

void Mailbox::report(const TenantReport& report) const noexcept {
  MailboxHeaderWire& head = header();
  head.progress.store(report.progress, std::memory_order_relaxed);
  head.free_blocks.store(report.free_blocks, std::memory_order_relaxed);
  head.used_blocks.store(report.used_blocks, std::memory_order_relaxed);
  head.cached_blocks.store(report.cached_blocks, std::memory_order_relaxed);
  head.pins.store(report.pins.count, std::memory_order_relaxed);
  head.oldest_pin_ns.store(report.pins.oldest_ns, std::memory_order_relaxed);
  head.heartbeat_ns.store(report.heartbeat_ns, std::memory_order_release);
}

TenantReport Mailbox::report() const noexcept {
  const MailboxHeaderWire& head = header();
  TenantReport report;
  report.heartbeat_ns = head.heartbeat_ns.load(std::memory_order_acquire);
  report.progress = head.progress.load(std::memory_order_relaxed);
  report.free_blocks = head.free_blocks.load(std::memory_order_relaxed);
  report.used_blocks = head.used_blocks.load(std::memory_order_relaxed);
  report.cached_blocks = head.cached_blocks.load(std::memory_order_relaxed);
  report.pins = {head.pins.load(std::memory_order_relaxed),
                 head.oldest_pin_ns.load(std::memory_order_relaxed)};
  return report;
}

MailboxHeaderWire& Mailbox::header() const noexcept {
  return *reinterpret_cast<MailboxHeaderWire*>(mapping_.data());
}

SlabWordWire& Mailbox::at(SlabId slab) const noexcept {
  return reinterpret_cast<SlabWordWire*>(mapping_.data() +
                                         sizeof(MailboxHeaderWire))[static_cast<std::size_t>(slab)];
}

}  // namespace rose::memory
