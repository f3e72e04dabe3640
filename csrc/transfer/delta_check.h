// Whether a delta that was received is well formed.
#pragma once

#include "base/status.h"
#include "transfer/delta.h"

namespace rose::transfer {

// Reads all of a delta. When it is ok, every position and offset that a reader of it computes is
// inside its block, and the delta is the only one that says what it says, but for what only the
// weights can tell (docs/protocol.md, "Deltas"). Otherwise Corrupt; the sentence names the block.
Status check_delta(const DeltaView& delta) noexcept;

}  // namespace rose::transfer
