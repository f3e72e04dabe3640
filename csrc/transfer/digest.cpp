#include "transfer/digest.h"

#include <algorithm>
#include <array>
#include <string>

namespace rose::transfer {

namespace {

constexpr std::size_t kWordElements = 4;

}  // namespace

void add_elements(Isa isa, const std::uint16_t* bits, std::size_t count, std::uint64_t first_word,
                  std::uint64_t seed, Digest& digest) noexcept {
  const std::size_t whole = count / kWordElements;
  add_words(isa, bits, whole, first_word, seed, digest);
  if (count % kWordElements == 0) return;
  std::array<std::uint16_t, kWordElements> last{};
  std::copy(bits + whole * kWordElements, bits + count, last.begin());
  add_words(Isa::kPortable, last.data(), 1, first_word + whole, seed, digest);
}

Result<Digest> digest(std::span<const std::uint16_t> bits, std::uint64_t first_index,
                      std::uint64_t seed, Isa isa) noexcept {
  if (first_index % kWordElements != 0) {
    return Status::invalid_argument("first_index " + std::to_string(first_index) +
                                    ": a part starts at a multiple of 4 elements");
  }
  Digest sums;
  add_elements(isa, bits.data(), bits.size(), first_index / kWordElements, seed, sums);
  return sums;
}

}  // namespace rose::transfer
