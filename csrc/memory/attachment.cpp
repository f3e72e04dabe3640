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

Status check_open(const FileDescriptor& fd, const char* what) noexcept {
  if (::fcntl(fd.get(), F_GETFD) >= 0) return {};
  return Status::invalid_argument(std::string{what} + " is no open descriptor");
}

}  // namespace

// ---- coming and going

Result<std::shared_ptr<const Attachment::Line>> Attachment::make_line(
    AttachmentParts parts) noexcept {
  ROSE_TRY(check_open(parts.to_arbiter, "the bell to the arbiter"));
  ROSE_TRY(check_open(parts.to_tenant, "the bell to the tenant"));
  Result<LedgerView> ledger = LedgerView::open(parts.ledger);
  if (!ledger.ok()) return ledger.status();
  ROSE_TRY(ledger.value().audit());
  return std::make_shared<const Line>(
      Line{std::make_shared<const LedgerView>(ledger.take()), EventFd{std::move(parts.to_arbiter)},
           EventFd{std::move(parts.to_tenant)}, std::move(parts.socket)});
}

Result<std::unique_ptr<Attachment>> Attachment::create(Pool pool, AttachmentParts parts) noexcept {
  const FileDescriptor mailbox_fd = std::move(parts.mailbox);
  Result<std::shared_ptr<const Line>> line = make_line(std::move(parts));
  if (!line.ok()) return line.status();
  const LedgerView& ledger = *line.value()->ledger;
  if (ledger.shape() != pool.shape()) {
    return Status::invalid_argument("the ledger is of a pool of another shape");
  }
  Result<Mailbox> mailbox = Mailbox::open(mailbox_fd, pool.shape());
  if (!mailbox.ok()) return mailbox.status();
  if (mailbox.value().pool() != ledger.pool()) {
    return Status::corrupt("the mailbox belongs to another pool");
  }
  return std::unique_ptr<Attachment>{new Attachment{std::move(pool), mailbox.take(), line.take()}};
}

Attachment::Attachment(Pool pool, Mailbox mailbox, std::shared_ptr<const Line> line) noexcept
    : pool_{std::move(pool)},
      mailbox_{std::move(mailbox)},
      partition_{mailbox_.partition()},
      line_{std::move(line)},
      known_(static_cast<std::size_t>(pool_.shape().slab_count)) {}

Attachment::~Attachment() { static_cast<void>(close()); }

Status Attachment::follow(AttachmentParts parts) noexcept {
  Result<std::shared_ptr<const Line>> line = make_line(std::move(parts));
  if (!line.ok()) return line.status();
  const LedgerView& ledger = *line.value()->ledger;
  if (ledger.shape() != pool_.shape() || mailbox_.pool() != ledger.pool()) {
    return Status::corrupt("the successor's ledger is of another pool");
  }
  const std::lock_guard lock{lines_};
  line_ = line.take();
  return {};
}

Status Attachment::close() noexcept {
  is_closed_.store(true);
  const Result<std::int32_t> given = give_idle();
  return given.ok() ? Status{} : given.status();
}

std::shared_ptr<const Attachment::Line> Attachment::line() const noexcept {
  const std::lock_guard lock{lines_};
  return line_;
}

std::shared_ptr<const LedgerView> Attachment::ledger() const noexcept { return line()->ledger; }

Result<BlockAllocator*> Attachment::add_allocator(BlockGeometry geometry) noexcept {
  Result<BlockGrid> grid = BlockGrid::create(pool_.shape(), geometry);
  if (!grid.ok()) return grid.status();
  {
    const std::lock_guard lock{slabs_};
    if (allocator_ != nullptr) {
      return Status::invalid_argument("the attachment has an allocator already");
    }
    allocator_.reset(new BlockAllocator{grid.value(), blocks_, *this});
  }
  const Result<TenantNews> found = look();
  if (!found.ok()) return found.status();
  return allocator_.get();
}

// ---- news

Result<TenantNews> Attachment::news(Nanoseconds timeout_ns) noexcept {
  const std::shared_ptr<const Line> now = line();
  std::array<pollfd, 2> fds{pollfd{now->to_tenant.get(), POLLIN, 0},
                            pollfd{now->socket.get(), POLLRDHUP, 0}};
  poll_for(fds, timeout_ns);
  if (fds[0].revents != 0) now->to_tenant.silence();  // before we look: a later ring is a new one
  Result<TenantNews> found = look();
  if (!found.ok()) return found;
  found.value().was_rung = fds[0].revents != 0;
  found.value().is_arbiter_gone = fds[1].revents != 0;
  return found;
}

Result<TenantNews> Attachment::look() noexcept {
  const std::lock_guard lock{slabs_};
  TenantNews news;
  if (allocator_ == nullptr) return news;
  ROSE_TRY(allocator_->reconcile());
  for (SlabId slab = 0; slab < pool_.shape().slab_count; ++slab) {
    Known& known = known_[static_cast<std::size_t>(slab)];
    const SlabWord word = mailbox_.word(slab);
    const bool is_here =
        word.use == WordUse::kIdle || word.use == WordUse::kBusy || word.use == WordUse::kClosed;
    if (known.is_ours && (!is_here || word.generation != known.generation)) {
      known.is_ours = false;
      ++news.taken;
    }
    if (!known.is_ours && word.use == WordUse::kIdle) {
      ROSE_TRY(allocator_->admit_slab(slab, word.generation));
      known = {true, word.generation};
      ++news.admitted;
    }
    if (known.is_ours && word.use == WordUse::kClosed) news.closed.push_back(slab);
  }
  return news;
}

Result<std::optional<RevocationNote>> Attachment::revocation() const noexcept {
  const Result<LedgerView::Moment> moment = ledger()->read();
  if (!moment.ok()) return moment.status();
  for (const PartitionRecord& one : moment.value().partitions) {
    if (one.partition.id != partition_ || one.revocation.id == 0) continue;
    return std::optional{one.revocation};
  }
  return std::optional<RevocationNote>{};
}

// ---- telling the arbiter

void Attachment::beat(std::uint64_t progress) noexcept {
  const std::lock_guard lock{slabs_};
  TenantReport told{BootClock{}.now_ns(), progress, 0, 0, 0};
  if (allocator_ != nullptr) {
    told.free_blocks = allocator_->free_blocks();
    told.used_blocks = allocator_->used_blocks();
    told.cached_blocks = allocator_->cached_blocks();
    for (SlabId slab = 0; slab < pool_.shape().slab_count; ++slab) {
      if (!known_[static_cast<std::size_t>(slab)].is_ours) continue;
      mailbox_.set_used(slab, static_cast<std::uint32_t>(allocator_->used(slab)));
    }
  }
  mailbox_.report(told);
}

Status Attachment::set_ranks(std::span<const SlabId> slabs,
                             std::span<const std::uint32_t> ranks) noexcept {
  if (slabs.size() != ranks.size()) {
    return Status::invalid_argument(std::to_string(slabs.size()) + " slabs and " +
                                    std::to_string(ranks.size()) + " ranks");
  }
  for (const SlabId slab : slabs) {
    if (slab >= 0 && slab < pool_.shape().slab_count) continue;
    return Status::invalid_argument("no slab " + std::to_string(slab) + " to rank");
  }
  for (std::size_t i = 0; i < slabs.size(); ++i) mailbox_.set_rank(slabs[i], ranks[i]);
  return {};
}

Result<std::int32_t> Attachment::give_idle() noexcept {
  const std::lock_guard lock{slabs_};
  std::int32_t given = 0;
  for (SlabId slab = 0; slab < pool_.shape().slab_count; ++slab) {
    const SlabWord word = mailbox_.word(slab);
    if (word.use == WordUse::kIdle && mailbox_.give(slab, word.generation)) {
      known_[static_cast<std::size_t>(slab)].is_ours = false;
      ++given;
    }
  }
  if (given == 0) return given;
  line()->to_arbiter.ring();
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
  if (left == Leaving::kHome) line()->to_arbiter.ring();
  return left == Leaving::kStays;
}

}  // namespace rose::memory
