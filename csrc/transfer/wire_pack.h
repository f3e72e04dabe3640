// A delta and its wire encoding in one pass: each block is encoded while it is in the cache.
#pragma once

#include "transfer/class_rule.h"
#include "transfer/delta_pack.h"
#include "transfer/strat.h"

namespace rose::transfer {

struct PackedForWire {
  PackedDelta delta;
  RecodedDelta wire;
};

// Returns the same bits as delta_pack() and then strat_pack(). The shadow must be a row; all else
// is as in delta_pack(). On error nothing is changed.
template <ElementBits T>
Result<PackedForWire> wire_pack(const Box<const T>& fresh, const Box<T>& shadow,
                                const PackOptions& options, const ClassRule& rule) noexcept;

}  // namespace rose::transfer
