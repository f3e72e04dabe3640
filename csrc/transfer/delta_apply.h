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
  // True if check_delta() has accepted this delta, and nothing can have changed it since.
  bool is_checked{false};
};

// Checks `delta` first, unless is_checked; on error nothing is changed. Then writes only the
// changed elements. Undoing restores the same bits. Nobody else may use the weights or change the
// delta during the call.
template <ElementBits T>
Status delta_apply(const Box<T>& weights, const DeltaView& delta,
                   const ApplyOptions& options) noexcept;

// Checks that `weights` are the base of the delta or, if `is_undone`, its result. Reads only the
// 8-byte words that the delta changes: the effect of the delta on these words must be the
// difference between the two digests. Corrupt if it is not, or if the delta is malformed. Changes
// nothing.
template <ElementBits T>
Status delta_verify(const Box<const T>& weights, const DeltaView& delta, const Digest& base,
                    const Digest& result, bool is_undone) noexcept;

// InvalidArgument if the weights and the delta differ in the number or the width of their elements.
// The message calls the weights `name`.
template <ElementBits T>
Status check_fit(const char* name, const Box<const T>& weights, const DeltaView& delta) noexcept;

}  // namespace rose::transfer
