#include "memory/remote_holder.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace rose::memory {

Result<std::shared_ptr<TenantLine>> TenantLine::create(Mailbox mailbox) noexcept {
  Result<EventFd> to_arbiter = EventFd::create();
  if (!to_arbiter.ok()) return to_arbiter.status();
  Result<EventFd> to_tenant = EventFd::create();
  if (!to_tenant.ok()) return to_tenant.status();
  Result<EventFd> late = EventFd::create();
  if (!late.ok()) return late.status();
  return std::make_shared<TenantLine>(
      TenantLine{std::move(mailbox), to_arbiter.take(), to_tenant.take(), late.take()});
}

RemoteHolder::RemoteHolder(PoolShape shape, std::shared_ptr<TenantLine> line,
                           Notify notify_at) noexcept
    : line_{std::move(line)},
      notify_at_{notify_at},
      entries_(static_cast<std::size_t>(shape.slab_count)) {}

void RemoteHolder::add_slab(SlabId slab, std::uint32_t generation) noexcept {
  entry(slab) = {generation, SlabUse::kOpen, false};
  if (notify_at_ == Notify::kAtGrant) notify(slab);
}

void RemoteHolder::notify(SlabId slab) noexcept {
  entry(slab).is_notified = true;
  line_->mailbox.grant(slab, entry(slab).generation);
  has_news_ = must_ring_ = true;
}

bool RemoteHolder::take_idle(SlabId slab) noexcept {
  if (!is_lost_ && !line_->mailbox.take_idle(slab, entry(slab).generation)) return false;
  entry(slab).use = SlabUse::kAbsent;
  has_news_ = true;  // does not wake the tenant, which notices the loss at its next look
  return true;
}

Status RemoteHolder::close_slab(SlabId slab) noexcept {
  entry(slab).use = SlabUse::kClosed;
  if (!entry(slab).is_notified) return {};
  line_->mailbox.close(slab, entry(slab).generation);
  has_news_ = must_ring_ = true;
  return {};
}

void RemoteHolder::quarantine_slab(SlabId slab) noexcept {
  entry(slab).use = SlabUse::kQuarantined;
  if (entry(slab).is_notified) has_news_ = must_ring_ = is_late_ = true;
}

void RemoteHolder::remove_slab(SlabId slab) noexcept {
  if (entry(slab).use == SlabUse::kAbsent) return;
  if (entry(slab).is_notified) line_->mailbox.clear(slab, entry(slab).generation);
  entry(slab).use = SlabUse::kAbsent;
  has_news_ = true;
}

bool RemoteHolder::has_given(SlabId slab) const noexcept {
  const Entry& mine = entry(slab);
  return mine.use == SlabUse::kOpen && mine.is_notified &&
         line_->mailbox.word(slab) == SlabWord{mine.generation, WordUse::kAbsent};
}

SlabLoad RemoteHolder::load(SlabId slab) const noexcept {
  const Entry& mine = entry(slab);
  if (is_lost_ || mine.use == SlabUse::kAbsent || !mine.is_notified) return {};
  const Mailbox& mailbox = line_->mailbox;
  // In a slab that is being revoked, an IDLE word is closed first, because the tenant could enter
  // the slab at any moment.
  const bool is_open = mine.use == SlabUse::kOpen;
  if (!is_open) mailbox.close(slab, mine.generation);
  const SlabWord now = mailbox.word(slab);
  const bool is_outside = now.use == WordUse::kAbsent || (is_open && now.use == WordUse::kIdle);
  if (now.generation == mine.generation && is_outside) return {};
  constexpr std::uint32_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::uint32_t used = std::clamp(mailbox.used(slab), 1u, kMost);
  return {static_cast<std::int32_t>(used), 0, mailbox.rank(slab)};
}

BlockTotals RemoteHolder::totals() const noexcept {
  if (is_lost_) return {};
  const TenantReport report = line_->mailbox.report();
  return {report.free_blocks, report.used_blocks};
}

PinTotals RemoteHolder::pin_totals() const noexcept {
  return is_lost_ ? PinTotals{} : line_->mailbox.report().pins;
}

void RemoteHolder::settle() noexcept {
  if (!has_news_ || is_lost_) return;
  line_->mailbox.tell_news();
  if (must_ring_) line_->to_tenant.ring();
  if (std::exchange(is_late_, false)) line_->late.ring();
  has_news_ = must_ring_ = false;
}

Status RemoteHolder::audit_slab(SlabId slab, SlabUse use, std::uint32_t generation) const noexcept {
  const std::string name = "slab " + std::to_string(slab);
  ROSE_CHECK(entry(slab).use == use,
             name + " has different uses in its tenant's records and in the arbiter");
  ROSE_CHECK(use == SlabUse::kAbsent || entry(slab).generation == generation,
             name + " has different generations in its tenant's records and in the arbiter");
  return {};
}

}  // namespace rose::memory
