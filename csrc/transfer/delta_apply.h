// Changes weights by a delta, and changes them back.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/box.h"
#include "transfer/delta.h"
#include "transfer/simd.h"

namespace rose::transfer {

struct ApplyOptions {
  bool is_undone{false};
  // Whether check_delta() found this very delta sound, and nobody could change it since.
  bool is_checked{false};
};

// Checks `delta` first, unless it was: on error nothing was changed. Then works on the changed
// elements only. Undoing what was applied gives the same bits back. Nobody else may use the weights
// or change the delta meanwhile.
template <ElementBits T>
Status delta_apply(const Box<T>& weights, const DeltaView& delta,
                   const ApplyOptions& options) noexcept;

// Whether `weights` are what `delta` was made from, or, to be undone, what it makes of that, as far
// as the words tell that it touches: their parts of the two digests must differ as the digests do.
// Corrupt if they are not, or if the delta is not well formed. Nothing is changed.
template <ElementBits T>
Status delta_verify(const Box<const T>& weights, const DeltaView& delta, const Digest& base,
                    const Digest& result, bool is_undone) noexcept;

// Refuses another number of elements or another width than the delta has; `name` is the array's.
template <ElementBits T>
Status check_fit(const char* name, const Box<const T>& weights, const DeltaView& delta) noexcept;

}  // namespace rose::transfer
