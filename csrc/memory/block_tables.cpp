// Blocks of many sequences at once, straight into the table of an engine.
#include <algorithm>
#include <string>

#include "memory/block_allocator.h"

namespace rose::memory {

namespace {

Status check_room(const BlockTable& table, std::span<const std::int32_t> counts) noexcept {
  if (counts.size() != table.rows) {
    return Status::invalid_argument(std::to_string(counts.size()) + " counts for a table of " +
                                    std::to_string(table.rows) + " rows");
  }
  for (std::size_t row = 0; row < table.rows; ++row) {
    const std::int64_t after = std::int64_t{table.lengths[row]} + counts[row];
    if (table.lengths[row] >= 0 && counts[row] >= 0 && after <= std::int64_t(table.width)) continue;
    return Status::invalid_argument("row " + std::to_string(row) + " has " +
                                    std::to_string(table.lengths[row]) + " ids and room for " +
                                    std::to_string(table.width) + ": " +
                                    std::to_string(counts[row]) + " more do not fit");
  }
  return {};
}

// A row that was looked at is marked by the complement of its length, which is negative, so that
// one that is named twice is found without a list of its own. The marks are gone when this returns.
Status check_rows(const BlockTable& table, std::span<const std::int32_t> rows) noexcept {
  Status wrong;
  std::size_t marked = 0;
  for (; marked < rows.size(); ++marked) {
    const auto row = static_cast<std::size_t>(rows[marked]);
    if (rows[marked] < 0 || row >= table.rows) {
      wrong = Status::invalid_argument("no row " + std::to_string(rows[marked]) +
                                       " in a table of " + std::to_string(table.rows));
      break;
    }
    std::int32_t& length = table.lengths[row];
    if (length < 0 || std::size_t(length) > table.width) {
      wrong = Status::invalid_argument("row " + std::to_string(row) +
                                       " is named twice, or its length is out of range");
      break;
    }
    length = ~length;
  }
  for (const std::int32_t row : rows.first(marked)) {
    std::int32_t& length = table.lengths[static_cast<std::size_t>(row)];
    length = ~length;
  }
  return wrong;
}

std::span<BlockId> ids_in(const BlockTable& table, std::int32_t row) noexcept {
  const auto index = static_cast<std::size_t>(row);
  return {table.row(index), static_cast<std::size_t>(table.lengths[index])};
}

}  // namespace

Result<bool> BlockAllocator::alloc_rows(std::span<const std::int32_t> counts,
                                        const BlockTable& table) noexcept {
  const std::lock_guard lock{books_};
  ROSE_TRY(check_room(table, counts));
  ROSE_TRY(hear_news());
  for (std::size_t row = 0; row < table.rows; ++row) {
    if (take(counts[row], table.row(row) + table.lengths[row])) {
      table.lengths[row] += counts[row];
      continue;
    }
    while (row-- > 0) {
      table.lengths[row] -= counts[row];
      const BlockId* const fresh = table.row(row) + table.lengths[row];
      ROSE_TRY(give({fresh, static_cast<std::size_t>(counts[row])}));
    }
    return false;
  }
  return true;
}

Status BlockAllocator::free_rows(const BlockTable& table,
                                 std::span<const std::int32_t> rows) noexcept {
  const std::lock_guard lock{books_};
  ROSE_TRY(check_rows(table, rows));
  for (std::size_t done = 0; done < rows.size(); ++done) {
    const Status dropped = map_.drop(ids_in(table, rows[done]));
    if (dropped.ok()) continue;
    for (const std::int32_t row : rows.first(done)) map_.undo_drop(ids_in(table, row));
    return dropped;
  }
  for (const std::int32_t row : rows) {
    ROSE_TRY(release(ids_in(table, row)));
    table.lengths[static_cast<std::size_t>(row)] = 0;
  }
  return {};
}

}  // namespace rose::memory
