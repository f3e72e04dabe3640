// Makes a delta: the changes from the shadow to the fresh weights.
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
  // Digests of the shadow before and after packing, with index and seed 0. They are the digests of
  // the receiver's old and new weights.
  Digest base_digest;
  Digest digest;
};

// For each element, the number of consecutive packs that left its change unsent. An element whose
// number has reached the limit is due: its change is sent.
struct Ages {
  Box<std::uint8_t> counts;  // one per element; empty: no ages
  std::uint32_t limit{0};
};

struct PackOptions {
  std::uint32_t block_elements{kBlockElementsMax};
  // If > 0, only changes whose key is at least this, and elements that are due, are sent. Requires
  // bf16 elements.
  std::uint32_t threshold{0};
  Ages ages{};
  // Digest of the shadow, if known. Then words without changes need not be digested.
  std::optional<Digest> base_digest{};
  Isa isa{Isa::kPortable};
  std::uint32_t threads{1};
};

// Sets both digests of a delta, which differ by `moved`. The digest before packing is `known`, if
// it is given; otherwise delta.digest already is the digest after packing.
void settle_digests(const std::optional<Digest>& known, const Digest& moved,
                    PackedDelta& delta) noexcept;

// Packs in one pass over both arrays, and applies the sent changes to the shadow. Another thread
// may write `fresh` meanwhile: each element is read once, so delta, digests and shadow agree. The
// boxes have the same number of elements and do not overlap. The delta does not depend on the
// number of threads. On error nothing is changed.
template <ElementBits T>
Result<PackedDelta> delta_pack(const Box<const T>& fresh, const Box<T>& shadow,
                               const PackOptions& options) noexcept;

// InvalidArgument if the arrays or the options are not valid for a pack. Changes nothing.
template <ElementBits T>
Status check_versions(const Box<const T>& fresh, const Box<const T>& shadow,
                      const PackOptions& options) noexcept;

}  // namespace rose::transfer
