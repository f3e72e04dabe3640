#include "scheduler/lineup.h"

namespace rose::scheduler {

void Lineup::settle(WorkerTable& workers) {
  const WorkerColumns& all = workers.columns();
  rows_.resize(all.size(), kNoRow);
  changed_.clear();
  workers.each_changed([&](std::size_t slot) {
    changed_.push_back(slot);
    const bool has_room = all.room_tokens[slot] >= 0;
    if (has_room && rows_[slot] == kNoRow) open(slot);
    if (!has_room && rows_[slot] != kNoRow) close(slot);
    if (has_room) columns_.copy(rows_[slot], all, slot);
  });
}

void Lineup::open(std::size_t slot) {
  rows_[slot] = slots_.size();
  slots_.push_back(slot);
  columns_.resize(slots_.size());
}

void Lineup::close(std::size_t slot) {
  const std::size_t row = rows_[slot];
  const std::size_t last = slots_.size() - 1;
  if (row != last) {
    columns_.copy(row, columns_, last);
    slots_[row] = slots_[last];
    rows_[slots_[row]] = row;
    changed_.push_back(slots_[row]);
  }
  rows_[slot] = kNoRow;
  slots_.pop_back();
  columns_.resize(last);
}

}  // namespace rose::scheduler
