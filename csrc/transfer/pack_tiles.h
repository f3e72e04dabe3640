// Packs many small arrays in one call. Arrays without changes cost little more than a comparison.
#pragma once

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "transfer/changes_finder.h"
#include "transfer/wire_pack.h"

namespace rose::transfer {

struct TileVersions {
  std::variant<Versions<std::uint8_t>, Versions<std::uint16_t>, Versions<std::uint32_t>> versions;
  Digest base_digest;  // of the shadow
};

struct PackedTile {
  PackedDelta delta;
  RecodedDelta wire;  // empty without a class rule
};

// Packs each tile as delta_pack() does or, with a rule, as wire_pack() does; a tile without changes
// has no result. The tiles are divided among `options.threads`. On error no shadow is changed.
Result<std::vector<std::optional<PackedTile>>> pack_tiles(
    std::span<const TileVersions> tiles, const PackOptions& options,
    const std::optional<ClassRule>& rule) noexcept;

}  // namespace rose::transfer
