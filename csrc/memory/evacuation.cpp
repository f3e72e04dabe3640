// Moves blocks, so that whole slabs become empty.
#include <algorithm>
#include <string>

#include "memory/block_allocator.h"

namespace rose::memory {

// ---- planning

bool BlockAllocator::can_empty(SlabId slab) const noexcept {
  if (!map_.has_slab(slab) || map_.use(slab) == SlabUse::kQuarantined) return false;
  return map_.used(slab) > 0 && map_.pins(slab) == 0 && map_.aside(slab) == 0 &&
         !map_.is_draining(slab);
}

Evacuation BlockAllocator::plan_evacuation(std::span<const SlabId> slabs,
                                           std::int64_t limit) noexcept {
  const std::lock_guard lock{books_};
  Evacuation plan;
  if (!hear_news().ok()) return plan;
  // First stop all sources from giving blocks, so that no block moves from one source to another.
  std::vector<SlabId> sources;
  for (const SlabId slab : slabs) {
    if (!can_empty(slab) || map_.used(slab) > limit) continue;
    limit -= map_.used(slab);
    drop_cached(slab);
    map_.set_draining(slab, true);
    sources.push_back(slab);
  }
  for (const SlabId slab : sources) {
    std::vector<BlockId> targets(static_cast<std::size_t>(map_.used(slab)));
    if (take(map_.used(slab), targets.data())) {
      clear_out(slab, targets, plan);
    } else {
      map_.set_draining(slab, false);
    }
  }
  return plan;
}

Evacuation BlockAllocator::plan_evacuation(std::int64_t limit) noexcept {
  const std::lock_guard lock{books_};
  Evacuation plan;
  if (!hear_news().ok()) return plan;
  std::vector<SlabId> used;
  std::int64_t room = 0;
  for (SlabId slab = 0; slab < grid().shape().slab_count; ++slab) {
    const bool gives = map_.use(slab) == SlabUse::kOpen && !map_.is_draining(slab);
    if (!gives || map_.used(slab) == 0) continue;
    used.push_back(slab);
    room += map_.free_in(slab);
  }
  std::ranges::stable_sort(used, {}, [&](SlabId slab) { return map_.used(slab); });

  // Take the slabs in ascending order of their blocks in use, and move these blocks into free
  // blocks of the other slabs.
  std::vector<SlabId> sources;
  for (const SlabId slab : used) {
    if (!can_empty(slab)) continue;
    const std::int32_t moving = map_.used(slab);
    room -= map_.free_in(slab);
    if (moving > limit || moving > room) break;
    room -= moving;
    limit -= moving;
    sources.push_back(slab);
    drop_cached(slab);
    map_.set_draining(slab, true);
  }
  std::size_t fullest = used.size();
  for (const SlabId slab : sources) {
    std::vector<BlockId> targets(static_cast<std::size_t>(map_.used(slab)));
    for (std::size_t found = 0; found < targets.size();) {
      const SlabId target = used[fullest - 1];
      const auto missing = static_cast<std::int64_t>(targets.size() - found);
      const bool is_source = map_.is_draining(target);
      const std::int32_t part =
          is_source ? 0 : map_.take_from(target, missing, targets.data() + found);
      found += static_cast<std::size_t>(part);
      if (part < missing) --fullest;
    }
    clear_out(slab, targets, plan);
  }
  return plan;
}

// Plans a move for each block in use of a draining slab. `targets` has one block for each of them.
void BlockAllocator::clear_out(SlabId slab, std::span<const BlockId> targets,
                               Evacuation& plan) noexcept {
  map_.set_aside(targets);
  moves_out_of_[static_cast<std::size_t>(slab)] = static_cast<std::int32_t>(targets.size());
  for (std::int32_t index = 0, next = 0; index < map_.count(slab); ++index) {
    const BlockPosition at = map_.place_in(slab, index);
    if (map_.references(at) == 0) continue;
    const BlockId from = map_.block_at(at);
    const BlockId to = targets[static_cast<std::size_t>(next++)];
    const SlabId target = grid().slab_at(to);
    map_.pin(target);
    moves_.emplace(to, Move{from, map_.generation(slab), map_.generation(target)});
    plan.from.push_back(from);
    plan.to.push_back(to);
  }
}

// ---- ending

Status BlockAllocator::check_planned(std::span<const BlockId> from,
                                     std::span<const BlockId> to) const noexcept {
  if (from.size() != to.size()) {
    return Status::invalid_argument("`from` and `to` must have the same length, got " +
                                    std::to_string(from.size()) + " and " +
                                    std::to_string(to.size()));
  }
  for (std::size_t index = 0; index < to.size(); ++index) {
    const auto found = moves_.find(to[index]);
    if (found != moves_.end() && found->second.from == from[index]) continue;
    return Status::invalid_argument("no move of block " + std::to_string(from[index]) +
                                    " to block " + std::to_string(to[index]) + " is planned");
  }
  std::vector<BlockId> sorted(to.begin(), to.end());
  std::ranges::sort(sorted);
  const auto repeated = std::ranges::adjacent_find(sorted);
  if (repeated == sorted.end()) return {};
  return Status::invalid_argument("each move must be listed once, got block " +
                                  std::to_string(*repeated) + " twice in `to`");
}

Status BlockAllocator::finish_evacuation(std::span<const BlockId> from, std::span<const BlockId> to,
                                         std::span<BlockId> now_at) noexcept {
  const std::lock_guard lock{books_};
  ROSE_TRY(check_planned(from, to));
  for (std::size_t index = 0; index < to.size(); ++index) {
    ROSE_TRY(end_move(to[index], &now_at[index]));
  }
  return {};
}

Status BlockAllocator::cancel_evacuation(std::span<const BlockId> from,
                                         std::span<const BlockId> to) noexcept {
  const std::lock_guard lock{books_};
  ROSE_TRY(check_planned(from, to));
  for (const BlockId target : to) ROSE_TRY(end_move(target, nullptr));
  return {};
}

// Ends one planned move, and sets `now_at` to the block that has the data now. If `now_at` is null,
// nothing moves.
Status BlockAllocator::end_move(BlockId to, BlockId* now_at) noexcept {
  const Move move = moves_.extract(to).mapped();
  const bool has_moved = now_at != nullptr && carry_over(move, to);
  if (now_at != nullptr) *now_at = has_moved ? to : move.from;
  const SlabId target = grid().slab_at(to);
  if (map_.unpin(target, move.to_generation)) {
    if (!has_moved) map_.put_back(map_.find(to));
    ROSE_TRY(settle_slab(target));
  }
  const SlabId source = grid().slab_at(move.from);
  if (!map_.has_slab(source) || map_.generation(source) != move.from_generation) return {};
  const bool is_last = --moves_out_of_[static_cast<std::size_t>(source)] == 0;
  if (is_last) map_.set_draining(source, false);
  return settle_slab(source);
}

// Moves references and key from the source to `to`. False, with nothing changed, if the source was
// freed or the slab of `to` is being revoked.
bool BlockAllocator::carry_over(const Move& move, BlockId to) noexcept {
  const BlockPosition source = map_.find(move.from);
  const BlockPosition target = map_.find(to);
  const bool has_data = source.slab != kNoSlab &&
                        map_.generation(source.slab) == move.from_generation &&
                        map_.references(source) > 0;
  const bool is_welcome = target.slab != kNoSlab &&
                          map_.generation(target.slab) == move.to_generation &&
                          map_.use(target.slab) == SlabUse::kOpen;
  if (!has_data || !is_welcome) return false;
  map_.hand_out(target, map_.references(source));
  if (has_key(source)) {
    cache_.move(source.slot, target.slot);
    --keys_in(source.slab);
    ++keys_in(target.slab);
  }
  map_.free_used(source);
  return true;
}

}  // namespace rose::memory
