#include "memory/rebuild.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace rose::memory {

namespace {

// A table with larger ids was never written by an arbiter.
constexpr PartitionId kIdMax = 1 << 20;

bool is_live_use(WordUse use) noexcept {
  return use == WordUse::kIdle || use == WordUse::kBusy || use == WordUse::kClosed;
}

// Whether generation `a` is `b` or a later one; generations may wrap.
bool is_since(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>(a - b) >= 0;
}

class Rebuild {
 public:
  Rebuild(LedgerView::Moment moment, std::span<const Heir> heirs) noexcept
      : moment_{std::move(moment)}, heirs_{heirs} {}

  Result<Inheritance> run() noexcept {
    ROSE_TRY(take_partitions());
    out_.epoch = moment_.epoch + 2;  // a torn change may have used the next one already
    for (const SlabRecord& record : moment_.slabs) {
      out_.next_lease = std::max(out_.next_lease, record.lease_id + 1);
    }
    out_.slabs.resize(moment_.slabs.size());
    std::vector<SlabId> open;  // slabs that are no heir's by the ledger
    for (SlabId slab = 0; slab < size(); ++slab) {
      if (!keep(slab)) open.push_back(slab);
    }
    unowned_ = static_cast<std::int32_t>(open.size());
    for (const SlabId slab : open) claim(slab);
    return std::move(out_);
  }

 private:
  SlabId size() const noexcept { return static_cast<SlabId>(moment_.slabs.size()); }
  static std::size_t at(std::int32_t index) noexcept { return static_cast<std::size_t>(index); }
  const Heir* heir_of(PartitionId id) const noexcept {
    const auto found = std::ranges::find(heirs_, id, &Heir::partition);
    return found == heirs_.end() ? nullptr : &*found;
  }

  Status take_partitions() noexcept {
    for (const PartitionRecord& one : moment_.partitions) {
      const Partition& from = one.partition;
      if (from.id < 0 || from.id > kIdMax) return Status::corrupt("a partition without a number");
      list(from.id);
      const bool is_sound = 0 <= from.reserve_slabs && from.reserve_slabs <= from.limit_slabs;
      if (heir_of(from.id) == nullptr || !is_sound) continue;
      out_.partitions[at(from.id)] = {from.id, from.name, from.reserve_slabs, from.limit_slabs,
                                      0,       0,         from.is_live};
    }
    for (const Heir& heir : heirs_) {
      const bool is_alone = heir_of(heir.partition) == &heir;
      if (heir.partition < 0 || heir.partition > kIdMax || !is_alone) {
        return Status::invalid_argument("there cannot be a survivor of partition " +
                                        std::to_string(heir.partition));
      }
      list(heir.partition);  // dropped, and forgotten since it had nothing left
    }
    return {};
  }

  // All partitions up to `id` are there; those that nothing is known of were dropped.
  void list(PartitionId id) noexcept {
    while (out_.partitions.size() <= at(id)) {
      const auto next = static_cast<PartitionId>(out_.partitions.size());
      out_.partitions.push_back({next, {}, 0, 0, 0, 0, false});
    }
  }

  // What the ledger says is an heir's stays so, unless its word says that it has left; false, and
  // nothing set, when it is no heir's or the word belongs to a later life of the slab.
  bool keep(SlabId slab) noexcept {
    const SlabRecord& from = moment_.slabs[at(slab)];
    const Heir* heir = heir_of(from.owner);
    const bool is_sound = is_held(from.state) || from.state == SlabState::kQuarantined;
    if (heir == nullptr || !is_sound) return false;
    const SlabWord word = heir->mailbox->word(slab);
    if (word == SlabWord{from.generation, WordUse::kAbsent}) return false;
    if (is_live_use(word.use) && word.generation != from.generation) return false;
    SlabState state = from.state;
    if (word.use == WordUse::kClosed) {
      if (state == SlabState::kGranted) state = SlabState::kRevoking;
      if (state == SlabState::kOwned) state = SlabState::kQuarantined;
    }
    if (!out_.partitions[at(heir->partition)].is_live) state = SlabState::kQuarantined;
    hold(slab, heir->partition, state, from.generation, from.lease_id);
    return true;
  }

  void hold(SlabId slab, PartitionId owner, SlabState state, std::uint32_t generation,
            std::uint64_t lease_id) noexcept {
    const bool is_lent = state == SlabState::kGranted || state == SlabState::kRevoking;
    if (is_lent && lease_id == 0) lease_id = out_.next_lease++;  // torn away
    out_.slabs[at(slab)] = {owner, state, is_lent ? out_.epoch : 0, generation,
                            is_lent ? lease_id : 0};
    Partition& one = out_.partitions[at(owner)];
    ++(state == SlabState::kQuarantined ? one.quarantined : one.held);
  }

  // A live word of the latest life of the slab, at or after the one the ledger knows.
  std::optional<Heir> claimant(SlabId slab, SlabWord& latest) const noexcept {
    std::optional<Heir> found;
    latest.generation = moment_.slabs[at(slab)].generation;
    for (const Heir& heir : heirs_) {
      const SlabWord word = heir.mailbox->word(slab);
      if (!is_live_use(word.use) || !is_since(word.generation, latest.generation)) continue;
      if (found.has_value() && word.generation == latest.generation) continue;
      found = heir;
      latest = word;
    }
    return found;
  }

  void claim(SlabId slab) noexcept {
    SlabWord word;
    const std::optional<Heir> heir = claimant(slab, word);
    const bool is_allowed = heir.has_value() &&
                            out_.partitions[at(heir->partition)].headroom() > 0 &&
                            spare_for(out_.partitions, heir->partition, unowned_) > 0;
    if (!is_allowed) {
      // Never an old generation again, whoever still knows it.
      out_.slabs[at(slab)].generation = word.generation + 1;
      return;
    }
    hold(slab, heir->partition, SlabState::kGranted, word.generation, 0);
    out_.claimed.push_back(slab);
    --unowned_;
  }

  const LedgerView::Moment moment_;
  const std::span<const Heir> heirs_;
  Inheritance out_;
  std::int32_t unowned_{0};
};

}  // namespace

Result<Inheritance> inherit(const LedgerView& ledger, std::span<const Heir> heirs) noexcept {
  Result<LedgerView::Moment> whole = ledger.read();
  if (whole.ok()) ROSE_TRY(LedgerView::audit(whole.value()));
  return Rebuild{whole.ok() ? whole.take() : ledger.read_torn(), heirs}.run();
}

}  // namespace rose::memory
