#include "transfer/block_reader.h"

#include <bit>
#include <cstring>

#include "transfer/elias_fano.h"

namespace rose::transfer {

namespace {

// Writes the positions and values of the nonzero elements of a RAW block; returns their number.
template <ElementBits T>
std::uint32_t read_raw(const BlockView& block, std::uint16_t* positions, T* differences) noexcept {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(block.words);
  std::uint32_t changed = 0;
  for (std::uint32_t i = 0; i < block.elements; ++i) {
    T difference = 0;
    std::memcpy(&difference, bytes + sizeof(T) * i, sizeof(T));
    positions[changed] = static_cast<std::uint16_t>(i);
    differences[changed] = difference;
    changed += difference != 0 ? 1 : 0;
  }
  return changed;
}

void read_gap(const BlockView& block, std::uint16_t* positions) noexcept {
  EliasFanoReader reader{block.words, block.elements, block.entry.changed};
  for (std::uint32_t i = 0; i < block.entry.changed; ++i) {
    positions[i] = static_cast<std::uint16_t>(reader.next());
  }
}

void read_bitmap(const BlockView& block, std::uint16_t* positions) noexcept {
  for (std::uint32_t word = 0; word < words_of_bits(block.elements); ++word) {
    for (std::uint32_t bits = block.words[word]; bits != 0; bits &= bits - 1) {
      *positions++ = static_cast<std::uint16_t>(32 * word +
                                                static_cast<std::uint32_t>(std::countr_zero(bits)));
    }
  }
}

// Writes -1 for each sign that is 1, and 1 for each sign that is 0.
template <ElementBits T>
void read_signs(const std::uint32_t* signs, std::uint32_t changed, T* differences) noexcept {
  for (std::uint32_t first = 0; first < changed; first += 32) {
    const std::uint32_t here = std::min(32U, changed - first);
    const std::uint32_t word = *signs++;
    for (std::uint32_t i = 0; i < here; ++i) {
      differences[first + i] = static_cast<T>(1U - 2 * (word >> i & 1));
    }
  }
}

// Sets the sizes of the listed changes.
template <ElementBits T>
void read_listed(const BlockView& block, const BodySections& body, T* differences) noexcept {
  const std::uint32_t listed = block.entry.listed;
  const bool is_all = listed == block.entry.changed;
  BitReader fields{body.magnitudes};
  // If all changes are listed, there are no ranks, and the reader of ranks is never used.
  EliasFanoReader ranks{is_all ? block.words : body.ranks, block.entry.changed, listed};
  const auto resize = [&](std::uint32_t rank, std::uint32_t magnitude) noexcept {
    const std::uint32_t size = magnitude + (is_all ? 1 : 2);
    const bool is_down = sign_of(differences[rank]) != 0;
    differences[rank] = static_cast<T>(is_down ? 0U - size : size);
  };
  if (body.large == 0) {
    for (std::uint32_t i = 0; i < listed; ++i) {
      resize(is_all ? i : ranks.next(), fields.take(body.magnitude_bits));
    }
    return;
  }
  EliasFanoReader large{body.large_ranks, listed, body.large};
  BitReader values{body.large_values};
  std::uint32_t left = body.large;
  std::uint32_t next = large.next();
  for (std::uint32_t i = 0; i < listed; ++i) {
    std::uint32_t magnitude = fields.take(body.magnitude_bits);
    if (i == next) {
      magnitude = values.take(kWidth<T>);
      next = --left == 0 ? listed : large.next();
    }
    resize(is_all ? i : ranks.next(), magnitude);
  }
}

}  // namespace

BodySections::BodySections(const BlockView& block) noexcept {
  const Entry& entry = block.entry;
  signs = block.words + position_words(entry.kind, block.elements, entry.changed);
  if (entry.listed == 0) return;
  const std::uint32_t* const shape = signs + words_of_bits(entry.changed);
  magnitude_bits = *shape & 0xFF;
  large = *shape >> 8;
  const std::uint32_t rank_size = rank_words(entry.changed, entry.listed);
  ranks = rank_size == 0 ? nullptr : shape + 1;
  magnitudes = shape + 1 + rank_size;
  if (large == 0) return;
  large_ranks = magnitudes + words_of_bits(entry.listed * magnitude_bits);
  large_values = large_ranks + EliasFanoShape{entry.listed, large}.words();
}

template <ElementBits T>
BlockChanges<T> read_changes(const BlockView& block, std::uint16_t* positions,
                             T* differences) noexcept {
  BlockChanges<T> changes{.elements = block.elements,
                          .changed = block.entry.changed,
                          .positions = positions,
                          .differences = differences};
  switch (block.entry.kind) {
    case Kind::kEmpty:
    case Kind::kStrat:
      changes.changed = 0;
      return changes;
    case Kind::kRaw:
      changes.changed = read_raw(block, positions, differences);
      return changes;
    case Kind::kGap:
      read_gap(block, positions);
      break;
    case Kind::kBitmap:
      read_bitmap(block, positions);
      break;
  }
  const BodySections body{block};
  read_signs(body.signs, block.entry.changed, differences);
  if (block.entry.listed != 0) read_listed(block, body, differences);
  return changes;
}

template BlockChanges<std::uint8_t> read_changes(const BlockView&, std::uint16_t*,
                                                 std::uint8_t*) noexcept;
template BlockChanges<std::uint16_t> read_changes(const BlockView&, std::uint16_t*,
                                                  std::uint16_t*) noexcept;
template BlockChanges<std::uint32_t> read_changes(const BlockView&, std::uint16_t*,
                                                  std::uint32_t*) noexcept;

}  // namespace rose::transfer
