// Whether a delta that was received is well formed.
#pragma once

#include "base/status.h"
#include "transfer/block_reader.h"
#include "transfer/delta.h"

namespace rose::transfer {

// Reads all of a delta. When it is ok, every position and offset that a reader of it computes is
// inside its block, and no size is more than its width can say (docs/protocol.md, "Reading it").
// Otherwise Corrupt; the sentence names the block. A delta with STRAT blocks is not ok: those are
// for links.
Status check_delta(const DeltaView& delta) noexcept;

// The same of some blocks only, and of the sizes of all: what is needed to read those. For whoever
// goes through a delta in parts, having checked all of it before.
Status check_blocks(const DeltaView& delta, BlockRange range) noexcept;

// Whether the table has an entry for every block, and the fields in front of it can be.
Status check_sizes(const DeltaView& delta) noexcept;

// Whether one block can be read; for those who read deltas of another make.
using Fault = const char*;
Fault check_block(const BlockView& block, std::uint32_t width, std::uint64_t words_left) noexcept;

}  // namespace rose::transfer
