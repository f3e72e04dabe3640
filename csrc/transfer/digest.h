// A hash that does not depend on how its tensor is split. docs/protocol.md, "Digests".
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/box.h"
#include "transfer/simd.h"

namespace rose::transfer {

struct DigestOptions {
  std::uint64_t first_index{0};  // index of the first element within its tensor
  std::uint64_t seed{0};         // seed of the tensor
  Isa isa{Isa::kPortable};
  std::uint32_t threads{1};
};

// Returns the digest of a part of a tensor. InvalidArgument if the part does not start at a
// multiple of eight bytes of the tensor. The last word is padded with zeros, so only the last part
// of a tensor may end within a word.
template <ElementBits T>
Result<Digest> digest(const Box<const T>& bits, const DigestOptions& options) noexcept;

// Adds the digest of `count` elements, which start at word `first_word` of their tensor. The last
// word is padded with zeros.
template <ElementBits T>
void add_elements(Isa isa, const T* bits, std::size_t count, std::uint64_t first_word,
                  std::uint64_t seed, Digest& digest) noexcept;

constexpr void add(const Digest& part, Digest& digest) noexcept {
  digest.first += part.first;
  digest.second += part.second;
}

}  // namespace rose::transfer
