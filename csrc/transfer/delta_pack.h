// Makes a delta: what changed between the shadow and the fresh weights.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "transfer/box.h"
#include "transfer/buffer.h"
#include "transfer/delta.h"
#include "transfer/simd.h"

namespace rose::transfer {

struct PackedDelta {
  Buffer<std::uint64_t> entries;
  Buffer<std::uint32_t> payload;
  // Of the shadow before and after packing, with index and seed 0: what the receiver holds, and
  // what it will hold.
  Digest base_digest;
  Digest digest;
};

// For how many packs in a row each element was left unsent; one that reaches the limit is sent.
struct Ages {
  Box<std::uint8_t> counts;  // as many as there are elements; no counts, no ages
  std::uint32_t limit{0};
};

struct PackOptions {
  std::uint32_t block_elements{kBlockElementsMax};
  // Above 0, only changes whose key reaches it are sent, and those that are due; for bf16 elements.
  std::uint32_t threshold{0};
  Ages ages{};
  // Of the shadow, if it is known: then no elements are digested but those around changes.
  std::optional<Digest> base_digest{};
  Isa isa{Isa::kPortable};
  std::uint32_t threads{1};
};

// Gives a delta its digests, of which `digest` is that after packing unless `known` is the one
// before.
void settle_digests(const std::optional<Digest>& known, const Digest& moved,
                    PackedDelta& delta) noexcept;

// Packs in one pass over both arrays, and moves the shadow to what was sent. The boxes have the
// same number of elements and share none. Any number of threads makes the same delta. On error
// nothing was changed.
template <ElementBits T>
Result<PackedDelta> delta_pack(const Box<const T>& fresh, const Box<T>& shadow,
                               const PackOptions& options) noexcept;

// Whether the arrays and the options can be those of a pack; the shadow is looked at only.
template <ElementBits T>
Status check_versions(const Box<const T>& fresh, const Box<const T>& shadow,
                      const PackOptions& options) noexcept;

}  // namespace rose::transfer
