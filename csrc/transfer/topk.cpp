#include "transfer/topk.h"

#include <algorithm>
#include <array>

#include "transfer/block_reader.h"
#include "transfer/delta_apply.h"
#include "transfer/delta_check.h"

namespace rose::transfer {

namespace {

constexpr std::uint32_t kTileElements = 4096;

// What a count of the changed elements looks at, tile by tile.
struct TileRoom {
  Buffer<std::uint16_t> found;
  std::array<std::uint16_t, kTileElements> fresh;
  std::array<std::uint16_t, kTileElements> shadow;
  std::array<std::uint8_t, kTileElements> ages;
};

// Counts the changed elements by key, and those that are due at the end.
void count_keys(const Box<const std::uint16_t>& fresh, const Box<const std::uint16_t>& shadow,
                const PackOptions& options, TileRoom& room, std::uint64_t* counts) noexcept {
  const Box<const std::uint8_t> ages = options.ages.counts;
  for (std::uint64_t first = 0; first < fresh.count(); first += kTileElements) {
    const std::size_t tile = std::min<std::uint64_t>(kTileElements, fresh.count() - first);
    const std::uint16_t* const a = in_a_row(fresh, first, tile, room.fresh.data());
    const std::uint16_t* const b = in_a_row(shadow, first, tile, room.shadow.data());
    const std::uint8_t* const old =
        ages.data == nullptr ? nullptr : in_a_row(ages, first, tile, room.ages.data());
    std::uint16_t* const found = room.found.data();
    const std::size_t changed = find_changed(options.isa, a, b, tile, 0, found);
    for (std::size_t i = 0; i < changed; ++i) {
      const std::uint16_t at = found[i];
      const bool is_due = old != nullptr && old[at] >= options.ages.limit;
      ++counts[is_due ? kNothingSent : change_key(a[at], b[at])];
    }
  }
}

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
  auto found = Buffer<std::uint16_t>::create(kTileElements + kFoundSlack);
  if (!found.ok()) return found.status();
  auto counts = Buffer<std::uint64_t>::create(kNothingSent + 1);
  if (!counts.ok()) return counts.status();
  std::ranges::fill(counts.value().span(), 0U);
  TileRoom room{.found = found.take(), .fresh = {}, .shadow = {}, .ages = {}};
  count_keys(fresh, shadow, options, room, counts.value().data());
  std::uint64_t sent = counts.value()[kNothingSent];
  std::uint32_t threshold = kNothingSent;
  while (threshold > 1) {
    sent += counts.value()[threshold - 1];
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
