// Checks whether a received delta is well formed.
#pragma once

#include "base/status.h"
#include "transfer/block_reader.h"
#include "transfer/delta.h"

namespace rose::transfer {

// Reads all of a delta. If the delta is ok, every position and offset that a reader computes from a
// block is inside that block, and no size exceeds the element's width (docs/protocol.md, "Reading
// it"). Otherwise Corrupt, with the number of the block. A delta with STRAT blocks, which only the
// wire encoding has, is not ok.
Status check_delta(const DeltaView& delta) noexcept;

// Checks the sizes of all blocks, and the content of those in `range`. For readers of parts of a
// delta that was checked before.
Status check_blocks(const DeltaView& delta, BlockRange range) noexcept;

// Corrupt unless the table has an entry for every block, and block_elements and width are possible.
Status check_sizes(const DeltaView& delta) noexcept;

// Checks that one block can be read, for readers of other forms of deltas. A Fault is the end of an
// error sentence; null if there is no fault.
using Fault = const char*;
Fault check_block(const BlockView& block, std::uint32_t width, std::uint64_t words_left) noexcept;

}  // namespace rose::transfer
