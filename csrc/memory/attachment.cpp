#include "memory/attachment.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

namespace rose::memory {

namespace {

// Time for which a closed slab without a pin stays with the engine. An engine that is not busy
// answers a ring within a millisecond.
constexpr Nanoseconds kGraceNs = 5'000'000;

Status check_open(const FileDescriptor& fd, const char* what) noexcept {
  if (::fcntl(fd.get(), F_GETFD) >= 0) return {};
  return Status::invalid_argument(std::string{what} + " is not an open descriptor");
}

}  // namespace

// ---- creation and end

Result<Attachment::Line> Attachment::make_line(AttachmentParts parts) noexcept {
  ROSE_TRY(check_open(parts.to_arbiter, "to_arbiter_fd"));
  ROSE_TRY(check_open(parts.to_tenant, "to_tenant_fd"));
  Result<LedgerView> ledger = LedgerView::open(parts.ledger);
  if (!ledger.ok()) return ledger.status();
  ROSE_TRY(ledger.value().audit());
  Result<EventFd> stop = EventFd::create();
  if (!stop.ok()) return stop.status();
  Result<EventFd> news = EventFd::create();
  if (!news.ok()) return news.status();
  return Line{std::make_shared<const LedgerView>(ledger.take()),
              EventFd{std::move(parts.to_arbiter)},
              EventFd{std::move(parts.to_tenant)},
              std::move(parts.socket),
              stop.take(),
              news.take()};
}

Result<std::unique_ptr<Attachment>> Attachment::create(Pool pool, AttachmentParts parts) noexcept {
  const PoolShape shape = pool.shape();
  return make(std::move(pool), shape, std::move(parts), nullptr);
}

Result<std::unique_ptr<Attachment>> Attachment::create_mapped(PoolShape shape,
                                                              AttachmentParts parts) noexcept {
  ROSE_TRY(check_shape(shape));
  return make(std::nullopt, shape, std::move(parts), nullptr);
}

Result<std::unique_ptr<Attachment>> Attachment::create_here(std::shared_ptr<Arbiter> arbiter,
                                                            PartitionId partition) noexcept {
  const Result<std::shared_ptr<TenantLine>> line = arbiter->line_of(partition);
  if (!line.ok()) return line.status();
  AttachmentParts parts;
  const auto copy = [](Result<FileDescriptor> from, FileDescriptor& to) -> Status {
    if (from.ok()) to = from.take();
    return from.status();
  };
  ROSE_TRY(copy(arbiter->share_ledger(), parts.ledger));
  ROSE_TRY(copy(duplicate_fd(line.value()->mailbox.fd()), parts.mailbox));
  ROSE_TRY(copy(duplicate_fd(line.value()->to_arbiter.get()), parts.to_arbiter));
  ROSE_TRY(copy(duplicate_fd(line.value()->to_tenant.get()), parts.to_tenant));
  const PoolShape shape = arbiter->pool().shape();
  return make(std::nullopt, shape, std::move(parts), std::move(arbiter));
}

Result<std::unique_ptr<Attachment>> Attachment::make(std::optional<Pool> pool, PoolShape shape,
                                                     AttachmentParts parts,
                                                     std::shared_ptr<Arbiter> arbiter) noexcept {
  const FileDescriptor mailbox_fd = std::move(parts.mailbox);
  Result<Line> line = make_line(std::move(parts));
  if (!line.ok()) return line.status();
  const LedgerView& ledger = *line.value().ledger;
  if (ledger.shape() != shape) {
    return Status::invalid_argument(
        "the ledger belongs to another pool: its number or size of slabs differs");
  }
  Result<Mailbox> mailbox = Mailbox::open(mailbox_fd, shape);
  if (!mailbox.ok()) return mailbox.status();
  if (mailbox.value().pool() != ledger.pool()) {
    return Status::corrupt("the mailbox belongs to another pool than the ledger");
  }
  return std::unique_ptr<Attachment>{
      new Attachment{std::move(pool), shape, mailbox.take(), line.take(), std::move(arbiter)}};
}

Attachment::Attachment(std::optional<Pool> pool, PoolShape shape, Mailbox mailbox, Line line,
                       std::shared_ptr<Arbiter> arbiter) noexcept
    : pool_{std::move(pool)},
      shape_{shape},
      mailbox_{std::move(mailbox)},
      line_{std::move(line)},
      arbiter_{std::move(arbiter)},
      partition_{mailbox_.partition()},
      known_(static_cast<std::size_t>(shape.slab_count),
             Known{.is_mapped = pool_.has_value() || arbiter_ != nullptr}) {}

Attachment::~Attachment() { static_cast<void>(close()); }

Status Attachment::close() noexcept {
  if (!owner_.is_here()) return {};  // The slabs belong to the parent.
  is_closed_.store(true);
  line_.stop.ring();
  thread_.join();
  const Result<std::int32_t> given = give_idle();
  return given.ok() ? Status{} : given.status();
}

Result<BlockAllocator*> Attachment::add_allocator(BlockGeometry geometry) noexcept {
  Result<BlockGrid> grid = BlockGrid::create(shape_, geometry);
  if (!grid.ok()) return grid.status();
  const std::lock_guard lock{slabs_};
  if (allocator_ != nullptr) {
    return Status::invalid_argument("the attachment has an allocator already");
  }
  allocator_.reset(new BlockAllocator{grid.value(), blocks_, *this});
  ROSE_TRY(look_locked().status());
  return allocator_.get();
}

// ---- the thread

Status Attachment::attend(Nanoseconds every_ns) noexcept {
  if (is_closed_.load() || is_attended_.exchange(true)) return {};
  return thread_.start("the thread of an attachment", [this, every_ns] { run(every_ns); });
}

void Attachment::run(Nanoseconds every_ns) noexcept {
  const bool is_here = arbiter_ != nullptr;
  const EventFd& bell = is_here ? line_.news : line_.to_tenant;
  const BootClock clock;
  std::vector<Nanoseconds> since_ns(known_.size(), 0);
  Nanoseconds beaten_ns = 0;
  bool has_closed = false;
  while (true) {
    std::array<pollfd, 2> fds{pollfd{line_.stop.get(), POLLIN, 0}, pollfd{bell.get(), POLLIN, 0}};
    poll_for(fds, has_closed ? std::min(kGraceNs, every_ns) : every_ns);
    if (fds[0].revents != 0) return;
    if (fds[1].revents != 0) {
      bell.silence();
      if (!is_here) line_.news.ring();
    }
    if (clock.now_ns() - beaten_ns >= every_ns) {
      beaten_ns = clock.now_ns();
      beat(mailbox_.report().progress);
    }
    has_closed = give_up_closed(since_ns);
  }
}

// Gives up closed slabs that had no pin since kGraceNs; since_ns[slab] is when that began. Returns
// whether a closed slab is left.
bool Attachment::give_up_closed(std::span<Nanoseconds> since_ns) noexcept {
  const Nanoseconds now_ns = BootClock{}.now_ns();
  const std::lock_guard lock{slabs_};
  static_cast<void>(look_locked());  // a slab whose blocks were only set aside leaves here
  const std::lock_guard blocks{blocks_};
  bool has_closed = false;
  for (SlabId slab = 0; slab < shape_.slab_count; ++slab) {
    Known& known = known_[static_cast<std::size_t>(slab)];
    Nanoseconds& free_ns = since_ns[static_cast<std::size_t>(slab)];
    const bool is_closed = known.is_ours && mailbox_.word(slab).use == WordUse::kClosed;
    const bool is_free = is_closed && holds_ == 0 && allocator_->load(slab).pins == 0;
    free_ns = !is_free ? 0 : free_ns != 0 ? free_ns : now_ns;
    if (is_free && now_ns - free_ns >= kGraceNs && allocator_->give_up(slab)) {
      known.is_given_up = true;
    } else {
      has_closed |= is_closed;
    }
  }
  return has_closed;
}

void Attachment::wake() noexcept {
  const std::lock_guard lock{slabs_};
  const std::lock_guard blocks{blocks_};
  for (SlabId slab = 0; slab < shape_.slab_count; ++slab) {
    const bool is_ours = known_[static_cast<std::size_t>(slab)].is_ours;
    if (is_ours && allocator_->load(slab).pins == 0) on_unpinned(slab);
  }
}

void Attachment::hold() noexcept {
  const std::lock_guard lock{blocks_};
  ++holds_;
}

void Attachment::release() noexcept {
  const std::lock_guard lock{blocks_};
  --holds_;
}

// ---- news

Result<TenantNews> Attachment::news(Nanoseconds timeout_ns) noexcept {
  const EventFd& bell = is_attended_.load() ? line_.news : line_.to_tenant;
  std::array<pollfd, 2> fds{pollfd{bell.get(), POLLIN, 0},
                            pollfd{line_.socket.get(), POLLRDHUP, 0}};
  poll_for(fds, timeout_ns);
  // The bell is silenced before the look, so that a later ring causes another look.
  if (fds[0].revents != 0) bell.silence();
  Result<TenantNews> found = look();
  if (!found.ok()) return found;
  found.value().was_rung = fds[0].revents != 0;
  found.value().is_arbiter_gone = fds[1].revents != 0;
  return found;
}

Result<TenantNews> Attachment::look() noexcept {
  const std::lock_guard lock{slabs_};
  return look_locked();
}

Result<TenantNews> Attachment::look_locked() noexcept {
  TenantNews news;
  if (allocator_ == nullptr) return news;
  ROSE_TRY(allocator_->reconcile());
  for (SlabId slab = 0; slab < shape_.slab_count; ++slab) {
    Known& known = known_[static_cast<std::size_t>(slab)];
    const SlabWord word = mailbox_.word(slab);
    const bool is_here =
        word.use == WordUse::kIdle || word.use == WordUse::kBusy || word.use == WordUse::kClosed;
    if (known.is_ours && (!is_here || word.generation != known.generation)) {
      known.is_ours = false;
      ++news.taken;
    }
    if (known.is_given_up) known.is_given_up = has_given_up(slab);
    const bool is_new = !known.is_ours && !known.is_given_up && word.use == WordUse::kIdle;
    if (is_new && known.is_mapped) {
      ROSE_TRY(allocator_->admit_slab(slab, word.generation));
      known = {.is_ours = true, .is_mapped = true, .generation = word.generation};
      ++news.admitted;
    }
    const bool is_closed = known.is_ours && word.use == WordUse::kClosed;
    if (is_closed || known.is_given_up) news.closed.push_back(slab);
  }
  return news;
}

bool Attachment::has_given_up(SlabId slab) const noexcept {
  const std::lock_guard lock{blocks_};
  return allocator_->has_given_up(slab);
}

Result<std::vector<SlabId>> Attachment::lent() noexcept {
  const std::lock_guard lock{slabs_};
  ROSE_TRY(look_locked().status());
  std::vector<SlabId> found;
  for (SlabId slab = 0; slab < shape_.slab_count; ++slab) {
    const bool is_ours = known_[static_cast<std::size_t>(slab)].is_ours;
    if (is_ours && mailbox_.word(slab).use != WordUse::kClosed) found.push_back(slab);
  }
  return found;
}

// If the arbiter died within a change, the ledger cannot be read; then only closed slabs are found.
Result<std::vector<SlabId>> Attachment::leaving() noexcept {
  Result<TenantNews> news = look();
  if (!news.ok()) return news.status();
  std::vector<SlabId> found = std::move(news.value().closed);
  const Result<LedgerView::Moment> moment = ledger()->read();
  for (SlabId slab = 0; moment.ok() && slab < shape_.slab_count; ++slab) {
    const SlabRecord& record = moment.value().slabs[static_cast<std::size_t>(slab)];
    const bool is_late = record.state == SlabState::kQuarantined;
    if (record.owner == partition_ && is_late) found.push_back(slab);
  }
  return found;
}

bool Attachment::is_late() const noexcept {
  const Result<std::optional<PartitionRecord>> own = ledger()->read(partition_);
  return own.ok() && own.value().has_value() && own.value()->partition.quarantined > 0;
}

Result<std::optional<RevocationNote>> Attachment::revocation() const noexcept {
  const Result<std::optional<PartitionRecord>> own = ledger()->read(partition_);
  if (!own.ok()) return own.status();
  if (!own.value().has_value() || own.value()->revocation.id == 0) {
    return std::optional<RevocationNote>{};
  }
  return std::optional{own.value()->revocation};
}

// ---- slabs that are mapped one by one

Status Attachment::check_slabs(std::span<const SlabId> slabs, const char* purpose) const noexcept {
  for (const SlabId slab : slabs) {
    if (slab >= 0 && slab < shape_.slab_count) continue;
    return Status::invalid_argument("slab " + std::to_string(slab) + " to " + purpose +
                                    " does not exist: the pool has " +
                                    std::to_string(shape_.slab_count) + " slabs");
  }
  return {};
}

Status Attachment::reach(std::span<const SlabId> slabs) noexcept {
  ROSE_TRY(check_slabs(slabs, "be reached"));
  const std::lock_guard lock{slabs_};
  for (const SlabId slab : slabs) known_[static_cast<std::size_t>(slab)].is_mapped = true;
  return look_locked().status();
}

// A slab that was granted again in the meantime is not returned: it was never unmapped and stays
// mapped, and the arbiter has zeroed its bytes.
Result<std::vector<SlabId>> Attachment::retire() noexcept {
  const std::lock_guard lock{slabs_};
  std::vector<SlabId> gone;
  const Result<TenantNews> found = look_locked();
  if (!found.ok()) return found.status();
  for (SlabId slab = 0; slab < shape_.slab_count; ++slab) {
    Known& known = known_[static_cast<std::size_t>(slab)];
    if (known.is_ours || !std::exchange(known.is_mapped, false)) continue;
    gone.push_back(slab);
  }
  return gone;
}

// ---- reports to the arbiter

void Attachment::beat(std::uint64_t progress) noexcept {
  const std::lock_guard lock{slabs_};
  TenantReport report{BootClock{}.now_ns(), progress, 0, 0, 0, {}};
  if (allocator_ != nullptr) {
    report.free_blocks = allocator_->free_blocks();
    report.used_blocks = allocator_->used_blocks();
    report.cached_blocks = allocator_->cached_blocks();
    report.pins = allocator_->pinned();
    for (SlabId slab = 0; slab < shape_.slab_count; ++slab) {
      if (!known_[static_cast<std::size_t>(slab)].is_ours) continue;
      mailbox_.set_used(slab, static_cast<std::uint32_t>(allocator_->used(slab)));
    }
  }
  mailbox_.report(report);
}

Status Attachment::set_ranks(std::span<const SlabId> slabs,
                             std::span<const std::uint32_t> ranks) noexcept {
  if (slabs.size() != ranks.size()) {
    return Status::invalid_argument("each slab needs one rank, got " +
                                    std::to_string(slabs.size()) + " slabs and " +
                                    std::to_string(ranks.size()) + " ranks");
  }
  ROSE_TRY(check_slabs(slabs, "be ranked"));
  for (std::size_t i = 0; i < slabs.size(); ++i) mailbox_.set_rank(slabs[i], ranks[i]);
  return {};
}

Result<std::int32_t> Attachment::give_idle() noexcept {
  const std::lock_guard lock{slabs_};
  std::int32_t given = 0;
  for (SlabId slab = 0; slab < shape_.slab_count; ++slab) {
    const SlabWord word = mailbox_.word(slab);
    if (word.use == WordUse::kIdle && mailbox_.give(slab, word.generation)) {
      known_[static_cast<std::size_t>(slab)].is_ours = false;
      ++given;
    }
  }
  if (given == 0) return given;
  line_.to_arbiter.ring();
  if (allocator_ != nullptr) ROSE_TRY(allocator_->reconcile());
  return given;
}

// ---- the door

bool Attachment::has_news() noexcept {
  const std::uint64_t now = mailbox_.news();
  return std::exchange(seen_news_, now) != now;
}

bool Attachment::is_open(SlabId slab, std::uint32_t generation) const noexcept {
  const SlabWord word = mailbox_.word(slab);
  return word.generation == generation &&
         (word.use == WordUse::kIdle || word.use == WordUse::kBusy);
}

bool Attachment::enter(SlabId slab, std::uint32_t generation) noexcept {
  return !is_closed_.load() && mailbox_.enter(slab, generation);
}

bool Attachment::leave(SlabId slab, std::uint32_t generation) noexcept {
  const Leaving left = mailbox_.leave(slab, generation);
  if (left == Leaving::kHome && arbiter_ != nullptr) {
    // The arbiter calls nothing of this object under its mutex. A failed call is repeated by the
    // next sweep().
    static_cast<void>(arbiter_->sweep_slab(partition_, slab));
  } else if (left == Leaving::kHome) {
    line_.to_arbiter.ring();
  }
  return left == Leaving::kStays;
}

// The thread of a tenant in another process polls closed slabs, because the arbiter's bell woke it.
void Attachment::on_unpinned(SlabId slab) noexcept {
  const bool is_here = arbiter_ != nullptr;
  if (is_here && mailbox_.word(slab).use == WordUse::kClosed) line_.news.ring();
}

}  // namespace rose::memory
