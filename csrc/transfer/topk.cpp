#include "transfer/topk.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "transfer/block_reader.h"
#include "transfer/delta_apply.h"
#include "transfer/delta_check.h"
#include "transfer/parallel.h"

namespace rose::transfer {

namespace {

constexpr std::uint32_t kTileElements = 4096;

// Fewest tiles per thread.
constexpr std::uint64_t kPartTiles = 64;
constexpr std::uint64_t kTopkPartsMax = 256;

// Counts changed elements by key, tile by tile. One thread uses it.
class KeyCounter {
 public:
  static Result<KeyCounter> create() noexcept {
    KeyCounter counter;
    ROSE_TRY(give_room(counter.counts_, kNothingSent + 1));
    ROSE_TRY(give_room(counter.found_, kTileElements + kFoundSlack));
    for (auto* const room : {&counter.fresh_, &counter.shadow_}) {
      ROSE_TRY(give_room(*room, kTileElements));
    }
    ROSE_TRY(give_room(counter.ages_, kTileElements));
    std::ranges::fill(counter.counts_.span(), 0U);
    return counter;
  }

  // Counts the changes of tiles `first` to `last` - 1. Due elements are counted under the key
  // kNothingSent.
  void count(const Box<const std::uint16_t>& fresh, const Box<const std::uint16_t>& shadow,
             const PackOptions& options, std::uint64_t first, std::uint64_t last) noexcept {
    const Box<const std::uint8_t> ages = options.ages.counts;
    for (std::uint64_t at = kTileElements * first; at < kTileElements * last; at += kTileElements) {
      const std::size_t tile = std::min<std::uint64_t>(kTileElements, fresh.count() - at);
      const std::uint16_t* const now = in_a_row(fresh, at, tile, fresh_.data());
      const std::uint16_t* const held = in_a_row(shadow, at, tile, shadow_.data());
      const std::uint8_t* const old =
          ages.data == nullptr ? nullptr : in_a_row(ages, at, tile, ages_.data());
      const std::size_t changed = find_changed<std::uint16_t>(
          options.isa, {now, held, fresh_.data()}, tile, 0, found_.data());
      for (std::size_t i = 0; i < changed; ++i) {
        const std::uint16_t place = found_[i];
        const bool is_due = old != nullptr && old[place] >= options.ages.limit;
        ++counts_[is_due ? kNothingSent : change_key(fresh_[place], held[place])];
      }
    }
  }

  std::uint64_t counted(std::uint32_t key) const noexcept { return counts_[key]; }

 private:
  Buffer<std::uint64_t> counts_;
  Buffer<std::uint16_t> found_;
  Buffer<std::uint16_t> fresh_;  // copy of a tile of the new elements
  // Copies of a tile, for arrays that are not a row.
  Buffer<std::uint16_t> shadow_;
  Buffer<std::uint8_t> ages_;
};

std::uint64_t count_changed(const DeltaView& delta) noexcept {
  std::uint64_t changed = 0;
  for (const std::uint64_t bits : delta.entries) changed += Entry::decode(bits).changed;
  return changed;
}

}  // namespace

Result<std::uint32_t> topk_threshold(const Box<const std::uint16_t>& fresh,
                                     const Box<const std::uint16_t>& shadow, std::uint64_t budget,
                                     const PackOptions& options) noexcept {
  ROSE_TRY(check_versions(fresh, shadow, options));
  const std::uint64_t tiles = (fresh.count() + kTileElements - 1) / kTileElements;
  const auto parts = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      std::min<std::uint64_t>(options.threads, tiles / kPartTiles), 1, kTopkPartsMax));
  std::vector<KeyCounter> counters;
  for (std::uint32_t part = 0; part < parts; ++part) {
    auto counter = KeyCounter::create();
    if (!counter.ok()) return counter.status();
    counters.push_back(counter.take());
  }
  for_each_part(parts, [&](std::uint32_t part) noexcept {
    counters[part].count(fresh, shadow, options, part_border(tiles, part, parts),
                         part_border(tiles, part + 1, parts));
  });
  const auto counted = [&](std::uint32_t key) noexcept {
    std::uint64_t sum = 0;
    for (const KeyCounter& counter : counters) sum += counter.counted(key);
    return sum;
  };
  std::uint64_t sent = counted(kNothingSent);
  std::uint32_t threshold = kNothingSent;
  while (threshold > 1) {
    sent += counted(threshold - 1);
    if (sent > budget) break;
    --threshold;
  }
  return threshold;
}

template <ElementBits T>
Result<ChangedElements<T>> topk_unpack(const DeltaView& delta, const Box<const T>& base) noexcept {
  ROSE_TRY(check_fit("base", base, delta));
  ROSE_TRY(check_delta(delta));
  const std::uint64_t changed = count_changed(delta);
  auto room = ChangesRoom<T>::create(kBlockElementsMax);
  if (!room.ok()) return room.status();
  auto positions = Buffer<std::int64_t>::create(changed);
  if (!positions.ok()) return positions.status();
  auto values = Buffer<T>::create(changed);
  if (!values.ok()) return values.status();

  std::uint64_t done = 0;
  BoxCursor<const T> cursor{base};
  for_each_block(delta, [&](const BlockView& block) noexcept {
    const BlockChanges<T> changes = room.value().read(block);
    for (std::uint32_t i = 0; i < changes.changed; ++i) {
      const std::uint64_t at = block.first + changes.positions[i];
      positions.value()[done] = static_cast<std::int64_t>(at);
      values.value()[done++] = static_cast<T>(cursor.at(at) + changes.differences[i]);
    }
  });
  return ChangedElements<T>{.positions = positions.take(), .values = values.take()};
}

template Result<ChangedElements<std::uint8_t>> topk_unpack(const DeltaView&,
                                                           const Box<const std::uint8_t>&) noexcept;
template Result<ChangedElements<std::uint16_t>> topk_unpack(
    const DeltaView&, const Box<const std::uint16_t>&) noexcept;
template Result<ChangedElements<std::uint32_t>> topk_unpack(
    const DeltaView&, const Box<const std::uint32_t>&) noexcept;

}  // namespace rose::transfer
