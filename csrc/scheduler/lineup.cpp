#include "scheduler/lineup.h"

#include <algorithm>

namespace rose::scheduler {

namespace {

constexpr double kNoTokens = -1;

}  // namespace

void Lineup::settle(WorkerTable& workers) {
  const WorkerColumns& all = workers.columns();
  rows_.resize(all.size(), kNoRow);
  changed_.clear();
  workers.each_changed([&](std::size_t slot) {
    changed_.push_back(slot);
    const bool has_room = all.room_tokens[slot] >= 0;
    if (has_room && rows_[slot] == kNoRow) open(slot);
    if (!has_room && rows_[slot] != kNoRow) close(slot, all);
    if (has_room) set(rows_[slot], all, slot);
  });
}

void Lineup::open(std::size_t slot) {
  rows_[slot] = slots_.size();
  slots_.push_back(slot);
  resize();
}

void Lineup::close(std::size_t slot, const WorkerColumns& all) {
  const std::size_t row = rows_[slot];
  const std::size_t last = slots_.size() - 1;
  if (row != last) {
    slots_[row] = slots_[last];
    rows_[slots_[row]] = row;
    set(row, all, slots_[row]);
    changed_.push_back(slots_[row]);
  }
  rows_[slot] = kNoRow;
  slots_.pop_back();
  resize();
}

void Lineup::set(std::size_t row, const WorkerColumns& all, std::size_t slot) noexcept {
  costs_.set(row, all, slot);
  room_tokens_[row] = all.room_tokens[slot];
  spare_tokens_[row] = all.spare_tokens[slot];
  numbers_[row] = static_cast<double>(all.number[slot]);
}

void Lineup::resize() {
  const std::size_t rows = slots_.size();
  costs_.resize(rows);
  numbers_.resize(CostTable::padded(rows));
  for (std::vector<double>* const tokens : {&room_tokens_, &spare_tokens_}) {
    tokens->resize(CostTable::padded(rows));
    std::fill(tokens->begin() + static_cast<std::ptrdiff_t>(rows), tokens->end(), kNoTokens);
  }
}

}  // namespace rose::scheduler
