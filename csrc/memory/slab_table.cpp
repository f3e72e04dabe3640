#include "memory/slab_table.h"

#include <string>
#include <utility>

namespace rose::memory {

Result<SlabTable> SlabTable::create(PoolShape shape) noexcept {
  Result<Ledger> ledger = Ledger::create(shape);
  if (!ledger.ok()) return ledger.status();
  return SlabTable{ledger.take(), std::vector<SlabRecord>(at(shape.slab_count))};
}

SlabTable::SlabTable(Ledger ledger, std::vector<SlabRecord> records) noexcept
    : records_{std::move(records)},
      unowned_{records_.size()},
      ledger_{std::move(ledger)},
      is_changed_{records_.size()} {
  changed_.reserve(records_.size());
  for (SlabId slab = 0; slab < size(); ++slab) {
    const SlabState state = records_[at(slab)].state;
    count(state, 1);
    if (state == SlabState::kUnowned) unowned_.set(at(slab));
    is_changed_.set(at(slab));
    changed_.push_back(slab);
  }
}

Status SlabTable::move(SlabId slab, SlabState to) noexcept {
  ROSE_CHECK(can_move(slab, to), no_move(slab, to));
  SlabRecord& record = change(slab, to);
  if (to == SlabState::kUnowned || to == SlabState::kReturned) record.owner = kNobody;
  if (is_held(to) || to == SlabState::kQuiesced || to == SlabState::kFenced) return {};
  record.lease_epoch = record.lease_id = 0;
  return {};
}

Status SlabTable::move(SlabId slab, SlabState to, const Hold& hold) noexcept {
  ROSE_CHECK(can_move(slab, to), no_move(slab, to));
  SlabRecord& record = change(slab, to);
  record.owner = hold.owner;
  record.lease_epoch = hold.lease_epoch;
  record.lease_id = hold.lease_id;
  return {};
}

std::string SlabTable::no_move(SlabId slab, SlabState to) const {
  return "slab " + std::to_string(slab) + " cannot move from state " +
         std::to_string(static_cast<int>(records_[at(slab)].state)) + " to state " +
         std::to_string(static_cast<int>(to));
}

// Changes state, generation and counts; the owner and the lease stay.
SlabRecord& SlabTable::change(SlabId slab, SlabState to) noexcept {
  SlabRecord& record = records_[at(slab)];
  count(record.state, -1u);
  count(to, 1);
  if (record.state == SlabState::kUnowned) unowned_.clear(at(slab));
  if (to == SlabState::kUnowned) unowned_.set(at(slab));
  if (to == SlabState::kReturned) ++record.generation;
  record.state = to;
  if (!is_changed_.test(at(slab))) {
    is_changed_.set(at(slab));
    changed_.push_back(slab);
  }
  return record;
}

void SlabTable::count(SlabState state, std::uint32_t by) noexcept {
  if (state == SlabState::kUnowned) counts_.free += by;
  if (is_held(state)) counts_.owned += by;
  if (state == SlabState::kQuarantined) counts_.quarantined += by;
}

void SlabTable::publish(std::uint64_t epoch, std::span<const PartitionRecord> partitions,
                        Nanoseconds now_ns) noexcept {
  ledger_.publish({records_, changed_, counts_, epoch, partitions, now_ns});
  for (const SlabId slab : changed_) is_changed_.clear(at(slab));
  changed_.clear();
}

Status SlabTable::audit() const noexcept {
  const Result<FileDescriptor> fd = ledger_.share();
  if (!fd.ok()) return fd.status();
  Result<LedgerView> view = LedgerView::open(fd.value());
  if (!view.ok()) return view.status();
  ROSE_TRY(view.value().audit());
  Result<LedgerView::Moment> moment = view.value().read();
  if (!moment.ok()) return moment.status();
  for (SlabId slab = 0; slab < size(); ++slab) {
    const SlabRecord& mine = records_[at(slab)];
    const SlabRecord& shown = moment.value().slabs[at(slab)];
    ROSE_CHECK(mine == shown, "the ledger and the table differ in slab " + std::to_string(slab));
    ROSE_CHECK(unowned_.test(at(slab)) == (mine.state == SlabState::kUnowned),
               "slab " + std::to_string(slab) +
                   " is wrongly in the unowned set, or wrongly missing from it");
  }
  return {};
}

}  // namespace rose::memory
