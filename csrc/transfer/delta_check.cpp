#include "transfer/delta_check.h"

#include <bit>
#include <cstring>
#include <string>

#include "transfer/elias_fano.h"

namespace rose::transfer {

// A Fault is the end of an error sentence; null if there is no fault.

namespace {

bool is_tail_clear(const std::uint32_t* section, std::uint32_t bits) noexcept {
  return bits % 32 == 0 || section[bits / 32] >> (bits % 32) == 0;
}

struct EliasFanoFaults {
  Fault count;
  Fault unused;
  Fault order;
};
constexpr EliasFanoFaults kPositionFaults{"the number of its positions differs from its changes",
                                          "unused bits of its positions are not 0",
                                          "its positions do not ascend within the block"};
constexpr EliasFanoFaults kRankFaults{"the number of its ranks differs from its listed changes",
                                      "unused bits of its ranks are not 0",
                                      "its ranks do not ascend within its changes"};
constexpr EliasFanoFaults kLargeFaults{"the number of its large ranks differs from its shape",
                                       "unused bits of its large ranks are not 0",
                                       "its large ranks do not ascend within its magnitudes"};

std::uint32_t count_bits(const std::uint32_t* words, std::uint32_t count) noexcept {
  std::uint32_t set = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    set += static_cast<std::uint32_t>(std::popcount(words[i]));
  }
  return set;
}

Fault check_elias_fano(const std::uint32_t* words, std::uint32_t universe, std::uint32_t count,
                       const EliasFanoFaults& faults) noexcept {
  const EliasFanoShape shape{universe, count};
  if (count_bits(words, shape.high_words) != count) return faults.count;
  if (!is_tail_clear(words, count + ((universe - 1) >> shape.low_bits)) ||
      !is_tail_clear(words + shape.high_words, count * shape.low_bits)) {
    return faults.unused;
  }
  EliasFanoReader reader{words, universe, count};
  std::uint32_t least = 0;
  bool is_ascending = true;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t position = reader.next();
    is_ascending &= position >= least && position < universe;
    least = position + 1;
  }
  return is_ascending ? nullptr : faults.order;
}

// Checks that the magnitudes have as many words as the entry leaves for them.
Fault check_shape(const BlockView& block, std::uint32_t width) noexcept {
  const Entry& entry = block.entry;
  std::uint32_t words =
      position_words(entry.kind, block.elements, entry.changed) + words_of_bits(entry.changed);
  constexpr Fault kOther = "its number of words does not match its changes";
  if (entry.listed == 0) return words == entry.words ? nullptr : kOther;
  const std::uint32_t at = words;
  words += 1 + rank_words(entry.changed, entry.listed);
  if (words > entry.words) return kOther;
  const std::uint32_t magnitude_bits = block.words[at] & 0xFF;
  const std::uint32_t large = block.words[at] >> 8;
  if (magnitude_bits >= width) return "its magnitudes must be narrower than its elements";
  if (large > entry.listed) return "it has more large magnitudes than listed changes";
  words += magnitude_words(entry.listed, large, magnitude_bits, width);
  return words == entry.words ? nullptr : kOther;
}

// Checks that each size is possible. The ranks must have been checked before.
Fault check_sizes_listed(const BlockView& block, const BodySections& body,
                         std::uint32_t width) noexcept {
  const std::uint32_t listed = block.entry.listed;
  const bool is_all = body.ranks == nullptr;
  const std::uint64_t most = std::uint64_t{1} << (width - 1);
  EliasFanoReader ranks{is_all ? block.words : body.ranks, block.entry.changed, listed};
  BitReader fields{body.magnitudes};
  BitReader values{body.large_values};
  std::uint32_t left = body.large;
  EliasFanoReader large{left == 0 ? block.words : body.large_ranks, listed, std::max(left, 1U)};
  std::uint32_t next = left == 0 ? listed : large.next();
  for (std::uint32_t i = 0; i < listed; ++i) {
    std::uint32_t magnitude = fields.take(body.magnitude_bits);
    if (i == next) {
      if (magnitude != 0) return "the field of a large magnitude is not 0";
      magnitude = values.take(width);
      if (magnitude >> body.magnitude_bits == 0)
        return "a large magnitude is small enough for its field";
      next = --left == 0 ? listed : large.next();
    }
    const std::uint32_t rank = is_all ? i : ranks.next();
    const std::uint64_t size = std::uint64_t{magnitude} + (is_all ? 1 : 2);
    const bool is_down = (body.signs[rank / 32] >> rank % 32 & 1) != 0;
    if (size > most || (size == most && !is_down)) return "a size exceeds the range of an element";
  }
  return nullptr;
}

Fault check_listed(const BlockView& block, std::uint32_t width) noexcept {
  const BodySections body{block};
  const std::uint32_t listed = block.entry.listed;
  if (body.ranks != nullptr) {
    if (const Fault fault =
            check_elias_fano(body.ranks, block.entry.changed, listed, kRankFaults)) {
      return fault;
    }
  }
  if (!is_tail_clear(body.magnitudes, listed * body.magnitude_bits)) {
    return "unused bits of its magnitudes are not 0";
  }
  if (body.large != 0) {
    if (const Fault fault = check_elias_fano(body.large_ranks, listed, body.large, kLargeFaults)) {
      return fault;
    }
    if (!is_tail_clear(body.large_values, width * body.large)) {
      return "unused bits of its large magnitudes are not 0";
    }
  }
  return check_sizes_listed(block, body, width);
}

Fault check_bitmap(const BlockView& block) noexcept {
  if (count_bits(block.words, words_of_bits(block.elements)) != block.entry.changed) {
    return kPositionFaults.count;
  }
  return is_tail_clear(block.words, block.elements) ? nullptr : kPositionFaults.unused;
}

// Checks a GAP or BITMAP block.
Fault check_sparse(const BlockView& block, std::uint32_t width) noexcept {
  if (const Fault fault = check_shape(block, width)) return fault;
  const Fault fault =
      block.entry.kind == Kind::kBitmap
          ? check_bitmap(block)
          : check_elias_fano(block.words, block.elements, block.entry.changed, kPositionFaults);
  if (fault != nullptr) return fault;
  const std::uint32_t* const signs =
      block.words + position_words(block.entry.kind, block.elements, block.entry.changed);
  if (!is_tail_clear(signs, block.entry.changed)) return "unused bits of its signs are not 0";
  return block.entry.listed == 0 ? nullptr : check_listed(block, width);
}

template <ElementBits T>
std::uint32_t count_raw(const BlockView& block) noexcept {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(block.words);
  std::uint32_t changed = 0;
  for (std::uint32_t i = 0; i < block.elements; ++i) {
    T difference = 0;
    std::memcpy(&difference, bytes + sizeof(T) * i, sizeof(T));
    changed += difference != 0 ? 1 : 0;
  }
  return changed;
}

Fault check_raw(const BlockView& block, std::uint32_t width) noexcept {
  if (!is_tail_clear(block.words, width * block.elements)) {
    return "the bits behind its elements are not 0";
  }
  const std::uint32_t changed =
      with_width(width, [&](auto element) noexcept { return count_raw<decltype(element)>(block); });
  return changed == block.entry.changed ? nullptr
                                        : "the number of its changes differs from its entry";
}

// Checks that the counts of an entry agree, as far as possible without the payload.
Fault check_entry(const BlockView& block, std::uint32_t width) noexcept {
  const Entry& entry = block.entry;
  if (entry.kind == Kind::kEmpty) {
    return entry.encode() == 0 ? nullptr : "its entry is EMPTY but has other bits set";
  }
  if (entry.kind == Kind::kStrat) return "it is STRAT, a wire encoding: unpack it first";
  if (entry.kind > Kind::kStrat) return "its kind is unknown";
  if (entry.changed == 0 || entry.changed > block.elements) {
    return "its number of changes is out of range";
  }
  const std::uint32_t raw = raw_words(block.elements, width);
  if (entry.kind == Kind::kRaw) {
    if (entry.listed != 0) return "it is RAW and lists changes";
    return entry.words == raw ? nullptr : "its number of words does not match its elements";
  }
  if (entry.listed > entry.changed) return "it has more listed changes than changes";
  return entry.words < raw ? nullptr : "it is not RAW, so it must take fewer words than RAW";
}

}  // namespace

Fault check_block(const BlockView& block, std::uint32_t width, std::uint64_t words_left) noexcept {
  if (const Fault fault = check_entry(block, width)) return fault;
  if (block.entry.words > words_left) return "the payload ends inside it";
  if (block.entry.kind == Kind::kEmpty) return nullptr;
  return block.entry.kind == Kind::kRaw ? check_raw(block, width) : check_sparse(block, width);
}

Status check_sizes(const DeltaView& delta) noexcept {
  if (!is_block_elements(delta.block_elements)) {
    return Status::corrupt("the delta has blocks of " + std::to_string(delta.block_elements) +
                           " elements: they must have 65536 or 16384");
  }
  if (!is_width(delta.width)) {
    return Status::corrupt("the delta has elements of " + std::to_string(delta.width) +
                           " bits: they must have 8, 16 or 32");
  }
  const std::uint64_t blocks = block_count(delta.count, delta.block_elements);
  if (delta.entries.size() != blocks) {
    return Status::corrupt("the delta has " + std::to_string(delta.entries.size()) +
                           " entries for " + std::to_string(blocks) +
                           " blocks: it must have one for each");
  }
  return {};
}

Status check_blocks(const DeltaView& delta, BlockRange range) noexcept {
  ROSE_TRY(check_sizes(delta));
  std::uint64_t offset = 0;
  for (std::uint64_t block = 0; block < delta.entries.size(); ++block) {
    const std::uint64_t first = block * delta.block_elements;
    const BlockView view{.first = first,
                         .elements = elements_of_block(delta.count, first, delta.block_elements),
                         .entry = Entry::decode(delta.entries[block]),
                         .words = delta.payload.data() + offset};
    const std::uint64_t left = delta.payload.size() - offset;
    const bool is_asked = block >= range.first && block < range.last;
    Fault fault = is_asked ? check_block(view, delta.width, left) : nullptr;
    if (view.entry.words > left && fault == nullptr) fault = "the payload ends inside it";
    if (fault != nullptr) {
      return Status::corrupt("block " + std::to_string(block) + " of the delta: " + fault);
    }
    offset += view.entry.words;
  }
  if (offset != delta.payload.size()) {
    return Status::corrupt("the delta has " + std::to_string(delta.payload.size() - offset) +
                           " words behind its last block: its " +
                           std::to_string(delta.entries.size()) + " blocks must use all words");
  }
  return {};
}

Status check_delta(const DeltaView& delta) noexcept { return check_blocks(delta, {}); }

}  // namespace rose::transfer
