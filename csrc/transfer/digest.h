// What tells two tensors apart, however they are split. docs/protocol.md, "Digests".
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "transfer/simd.h"

namespace rose::transfer {

// The digest of elements that start at element `first_index` of their tensor, which must be a
// multiple of 4. The last word is padded with zeros, so only the last part of a tensor may have a
// length that is no multiple of 4. `seed` is the tensor's.
Result<Digest> digest(std::span<const std::uint16_t> bits, std::uint64_t first_index,
                      std::uint64_t seed, Isa isa) noexcept;

// Adds elements that start at word `first_word`, the last word padded.
void add_elements(Isa isa, const std::uint16_t* bits, std::size_t count, std::uint64_t first_word,
                  std::uint64_t seed, Digest& digest) noexcept;

}  // namespace rose::transfer
