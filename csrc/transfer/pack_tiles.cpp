#include "transfer/pack_tiles.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transfer/delta_apply.h"
#include "transfer/parallel.h"

namespace rose::transfer {

namespace {

constexpr std::uint64_t kThreadsMax = 64;

using PackedTiles = std::vector<std::optional<PackedTile>>;

// True if both are rows of equal bits. Another thread may write `fresh` meanwhile; the next pack
// then finds its changes.
template <ElementBits T>
bool is_unchanged(const Versions<T>& one) noexcept {
  const std::uint64_t count = one.fresh.count();
  return one.fresh.is_row() && one.shadow.is_row() && count == one.shadow.count() &&
         (count == 0 || std::memcmp(one.fresh.data, one.shadow.data, sizeof(T) * count) == 0);
}

bool has_changes(const PackedDelta& delta) noexcept {
  return std::ranges::any_of(delta.entries.span(), [](std::uint64_t entry) { return entry != 0; });
}

template <ElementBits T>
Result<std::optional<PackedTile>> pack_tile(const Versions<T>& one, const PackOptions& options,
                                            const std::optional<ClassRule>& rule) noexcept {
  if (is_unchanged(one)) return std::optional<PackedTile>{};
  PackedTile made;
  if (rule) {
    auto packed = wire_pack<T>(one.fresh, one.shadow, options, *rule);
    if (!packed.ok()) return packed.status();
    made = {.delta = std::move(packed.value().delta), .wire = std::move(packed.value().wire)};
  } else {
    auto packed = delta_pack<T>(one.fresh, one.shadow, options);
    if (!packed.ok()) return packed.status();
    made.delta = packed.take();
  }
  if (!has_changes(made.delta)) return std::optional<PackedTile>{};
  return std::optional<PackedTile>{std::move(made)};
}

void undo(const TileVersions& tile, const PackedDelta& delta,
          std::uint32_t block_elements) noexcept {
  std::visit(
      [&]<typename T>(const Versions<T>& one) noexcept {
        const DeltaView view{.count = one.shadow.count(),
                             .block_elements = block_elements,
                             .width = kWidth<T>,
                             .entries = delta.entries.span(),
                             .payload = delta.payload.span()};
        // Cannot fail: the delta was made for this shadow, and is not checked again.
        static_cast<void>(delta_apply(one.shadow, view, {.is_undone = true, .is_checked = true}));
      },
      tile.versions);
}

}  // namespace

Result<PackedTiles> pack_tiles(std::span<const TileVersions> tiles, const PackOptions& options,
                               const std::optional<ClassRule>& rule) noexcept {
  PackedTiles packed(tiles.size());
  const auto parts = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      std::min<std::uint64_t>(options.threads, tiles.size()), 1, kThreadsMax));
  std::vector<Status> statuses(parts);
  for_each_part(parts, [&](std::uint32_t part) noexcept {
    PackOptions alone = options;
    alone.threads = 1;
    for (std::uint64_t at = part_border(tiles.size(), part, parts);
         at < part_border(tiles.size(), part + 1, parts) && statuses[part].ok(); ++at) {
      alone.base_digest = tiles[at].base_digest;
      auto made = std::visit([&](const auto& one) noexcept { return pack_tile(one, alone, rule); },
                             tiles[at].versions);
      if (made.ok()) {
        packed[at] = made.take();
      } else {
        statuses[part] = made.status();
      }
    }
  });
  for (const Status& status : statuses) {
    if (status.ok()) continue;
    for (std::size_t at = 0; at < tiles.size(); ++at) {
      if (packed[at]) undo(tiles[at], packed[at]->delta, options.block_elements);
    }
    return status;
  }
  return packed;
}

}  // namespace rose::transfer
