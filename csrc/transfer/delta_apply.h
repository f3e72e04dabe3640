// Applies a delta to weights, and undoes it.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/box.h"
#include "transfer/delta.h"
#include "transfer/simd.h"

namespace rose::transfer {

struct ApplyOptions {
  bool is_undone{false};
  // Whether check_delta() accepted this delta, which cannot have changed since.
  bool is_checked{false};
};

// Checks `delta` first unless is_checked; on error nothing was changed. Then only writes the
// changed elements. Undoing restores the same bits. Nobody else may use the weights or change the
// delta meanwhile.
template <ElementBits T>
Status delta_apply(const Box<T>& weights, const DeltaView& delta,
                   const ApplyOptions& options) noexcept;

// Whether `weights` are the delta's base or, for undoing, its result, as far as the words that it
// touches tell: their parts of the two digests must differ as the digests do. Corrupt if they are
// not, or if the delta is malformed. Nothing is changed.
template <ElementBits T>
Status delta_verify(const Box<const T>& weights, const DeltaView& delta, const Digest& base,
                    const Digest& result, bool is_undone) noexcept;

// Refuses another number of elements or width than the delta's; `name` is the array's.
template <ElementBits T>
Status check_fit(const char* name, const Box<const T>& weights, const DeltaView& delta) noexcept;

}  // namespace rose::transfer
