// The arbiter's view of the slabs of a tenant in another process.
#pragma once

#include <memory>
#include <vector>

#include "memory/slab_holder.h"
#include "memory/tenant_line.h"

namespace rose::memory {

// When to notify a tenant of a granted slab.
enum class Notify : std::uint8_t {
  kAtGrant,
  kWhenClean,  // in notify(); before that, the arbiter takes the slab back without asking
};

// Reads and writes the words of a mailbox. The arbiter's own record of each slab is kept here,
// where the tenant cannot change it. An invalid word counts as busy while the tenant lives.
class RemoteHolder final : public SlabHolder {
 public:
  RemoteHolder(PoolShape shape, std::shared_ptr<TenantLine> line, Notify notify_at) noexcept;

  void add_slab(SlabId slab, std::uint32_t generation) noexcept override;
  bool take_idle(SlabId slab) noexcept override;
  Status close_slab(SlabId slab) noexcept override;
  // Also reports the tenant as late, so that its watch may kill it: the tenant missed a deadline,
  // or was dropped while it used the slab. A tenant that was never notified of the slab's grant
  // cannot use the slab, so it is not late.
  void quarantine_slab(SlabId slab) noexcept override;
  void remove_slab(SlabId slab) noexcept override;
  void notify(SlabId slab) noexcept override;
  bool was_notified(SlabId slab) const noexcept override { return entry(slab).is_notified; }

  SlabLoad load(SlabId slab) const noexcept override;
  // Taken from the tenant's report.
  BlockTotals totals() const noexcept override;
  PinTotals pin_totals() const noexcept override;
  bool reports_idle() const noexcept override { return false; }
  bool has_given(SlabId slab) const noexcept override;
  void lose() noexcept override { is_lost_ = true; }
  void settle() noexcept override;

  Status audit_slab(SlabId slab, SlabUse use, std::uint32_t generation) const noexcept override;
  Status audit() const noexcept override { return {}; }

 private:
  struct Entry {
    std::uint32_t generation{0};
    SlabUse use{SlabUse::kAbsent};
    bool is_notified{false};
  };
  Entry& entry(SlabId slab) noexcept { return entries_[static_cast<std::size_t>(slab)]; }
  const Entry& entry(SlabId slab) const noexcept {
    return entries_[static_cast<std::size_t>(slab)];
  }

  const std::shared_ptr<TenantLine> line_;
  const Notify notify_at_;
  std::vector<Entry> entries_;
  bool has_news_{false};   // since the last settle()
  bool must_ring_{false};  // the news is worth waking the tenant
  bool is_late_{false};
  bool is_lost_{false};
};

}  // namespace rose::memory
