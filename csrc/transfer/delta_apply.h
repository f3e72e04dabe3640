// Changes weights by a delta, and changes them back.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "transfer/delta.h"

namespace rose::transfer {

// Checks all of `delta` first: on error nothing was changed. Then works on the changed elements
// only. Undoing what was applied gives the same bits back. Nobody else may use the weights or
// change the delta meanwhile.
Status delta_apply(std::span<std::uint16_t> weights, const DeltaView& delta, bool undo) noexcept;

}  // namespace rose::transfer
