#include "transfer/topk.h"

#include <algorithm>
#include <string>

#include "transfer/block_reader.h"
#include "transfer/delta_check.h"

namespace rose::transfer {

namespace {

constexpr std::uint32_t kTileElements = 4096;

// Counts the changed elements by key.
void count_keys(std::span<const std::uint16_t> fresh, std::span<const std::uint16_t> shadow,
                Isa isa, std::uint16_t* found, std::uint64_t* counts) noexcept {
  for (std::size_t first = 0; first < fresh.size(); first += kTileElements) {
    const std::size_t tile = std::min<std::size_t>(kTileElements, fresh.size() - first);
    const std::uint16_t* const a = fresh.data() + first;
    const std::uint16_t* const b = shadow.data() + first;
    const std::size_t changed = find_changed(isa, a, b, tile, 0, found);
    for (std::size_t i = 0; i < changed; ++i) ++counts[change_key(a[found[i]], b[found[i]])];
  }
}

std::uint64_t count_changed(const DeltaView& delta) noexcept {
  std::uint64_t changed = 0;
  for (const std::uint64_t bits : delta.entries) changed += Entry::decode(bits).changed;
  return changed;
}

// Writes to the next room of `out`; both pointers point at it.
void unpack_raw(const BlockView& block, const std::uint16_t* base, std::int64_t* positions,
                std::uint16_t* values) noexcept {
  for (std::uint32_t i = 0; i < block.elements; ++i) {
    const std::uint16_t change = raw_xor(block, i);
    if (change == 0) continue;
    *positions++ = static_cast<std::int64_t>(block.first + i);
    *values++ = static_cast<std::uint16_t>(base[i] ^ change);
  }
}

void unpack_gap(const BlockView& block, const std::uint16_t* base, std::uint16_t* scratch,
                std::int64_t* positions, std::uint16_t* values) noexcept {
  const GapReader reader{block, scratch};
  for (std::uint32_t i = 0; i < block.entry.changed; ++i) {
    positions[i] = static_cast<std::int64_t>(block.first + scratch[i]);
    values[i] = base[scratch[i]];
  }
  reader.change([values](std::uint32_t rank,
                         std::uint32_t) noexcept -> std::uint16_t& { return values[rank]; },
                false);
}

}  // namespace

Result<std::uint32_t> topk_threshold(std::span<const std::uint16_t> fresh,
                                     std::span<const std::uint16_t> shadow, std::uint64_t budget,
                                     Isa isa) noexcept {
  if (fresh.size() != shadow.size()) {
    return Status::invalid_argument("new has " + std::to_string(fresh.size()) +
                                    " elements and shadow " + std::to_string(shadow.size()));
  }
  auto found = Buffer<std::uint16_t>::create(kTileElements + kFoundSlack);
  if (!found.ok()) return found.status();
  auto counts = Buffer<std::uint64_t>::create(kNothingSent);
  if (!counts.ok()) return counts.status();
  std::ranges::fill(counts.value().span(), 0U);
  count_keys(fresh, shadow, isa, found.value().data(), counts.value().data());
  std::uint64_t reached = 0;
  std::uint32_t threshold = kNothingSent;
  while (threshold > 1) {
    reached += counts.value()[threshold - 1];
    if (reached > budget) break;
    --threshold;
  }
  return threshold;
}

Result<ChangedElements> topk_unpack(const DeltaView& delta,
                                    std::span<const std::uint16_t> base) noexcept {
  if (base.size() != delta.count) {
    return Status::invalid_argument("base has " + std::to_string(base.size()) +
                                    " elements, the delta " + std::to_string(delta.count));
  }
  ROSE_TRY(check_delta(delta));
  const std::uint64_t changed = count_changed(delta);
  auto scratch = Buffer<std::uint16_t>::create(kBlockElementsMax);
  if (!scratch.ok()) return scratch.status();
  auto positions = Buffer<std::int64_t>::create(changed);
  if (!positions.ok()) return positions.status();
  auto values = Buffer<std::uint16_t>::create(changed);
  if (!values.ok()) return values.status();

  std::uint64_t done = 0;
  for_each_block(delta, [&](const BlockView& block) noexcept {
    std::int64_t* const to = positions.value().data() + done;
    std::uint16_t* const become = values.value().data() + done;
    const std::uint16_t* const first = base.data() + block.first;
    if (block.entry.kind == Kind::kRaw) {
      unpack_raw(block, first, to, become);
    } else if (block.entry.kind == Kind::kGap) {
      unpack_gap(block, first, scratch.value().data(), to, become);
    }
    done += block.entry.changed;
  });
  return ChangedElements{.positions = positions.take(), .values = values.take()};
}

}  // namespace rose::transfer
