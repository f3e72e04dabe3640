#include "transfer/delta_check.h"

#include <bit>
#include <string>

#include "transfer/elias_fano.h"

namespace rose::transfer {

namespace {

// Why something is wrong, as the end of a sentence; null when nothing is.
using Fault = const char*;

bool is_tail_clear(const std::uint32_t* section, std::uint32_t bits) noexcept {
  return bits % 32 == 0 || section[bits / 32] >> (bits % 32) == 0;
}

struct EliasFanoFaults {
  Fault count;
  Fault unused;
  Fault order;
};
constexpr EliasFanoFaults kPositionFaults{"its positions are not as many as it changes",
                                          "unused bits of its positions are not 0",
                                          "its positions do not ascend within the block"};
constexpr EliasFanoFaults kRankFaults{"its ranks are not as many as its exceptions",
                                      "unused bits of its ranks are not 0",
                                      "its ranks do not ascend within its changes"};

// Calls visit(position) for each position, once the count is known to be right.
template <typename Visit>
Fault check_elias_fano(const std::uint32_t* words, std::uint32_t universe, std::uint32_t count,
                       const EliasFanoFaults& faults, Visit visit) noexcept {
  const EliasFanoShape shape{universe, count};
  std::uint32_t set = 0;
  for (std::uint32_t i = 0; i < shape.high_words; ++i) {
    set += static_cast<std::uint32_t>(std::popcount(words[i]));
  }
  if (set != count) return faults.count;
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
    visit(position);
  }
  return is_ascending ? nullptr : faults.order;
}

Fault check_exceptions(const std::uint32_t* signs, std::uint32_t changed,
                       std::uint32_t exceptions) noexcept {
  const std::uint32_t* const ranks = signs + words_of_bits(changed);
  std::uint32_t signed_exceptions = 0;
  const auto look_at_sign = [&](std::uint32_t rank) noexcept {
    // A rank that is out of range is reported by the caller, once all are read.
    if (rank < changed) signed_exceptions += signs[rank / 32] >> (rank % 32) & 1;
  };
  if (const Fault fault = check_elias_fano(ranks, changed, exceptions, kRankFaults, look_at_sign)) {
    return fault;
  }
  if (signed_exceptions != 0) return "an exception has a sign";
  const std::uint32_t* const values = ranks + EliasFanoShape{changed, exceptions}.words();
  if (!is_tail_clear(values, 16 * exceptions)) return "unused bits of its values are not 0";
  BitReader reader{values};
  for (std::uint32_t i = 0; i < exceptions; ++i) {
    // XOR 1 is a step of one whatever the element was.
    if (reader.take(16) <= 1) return "an exception is no change, or a step of one";
  }
  return nullptr;
}

Fault check_gap(std::uint32_t elements, const Entry& entry, const std::uint32_t* words) noexcept {
  const auto ignore = [](std::uint32_t) noexcept {};
  if (const Fault fault =
          check_elias_fano(words, elements, entry.changed, kPositionFaults, ignore)) {
    return fault;
  }
  const std::uint32_t* const signs = words + EliasFanoShape{elements, entry.changed}.words();
  if (!is_tail_clear(signs, entry.changed)) return "unused bits of its signs are not 0";
  return entry.exceptions == 0 ? nullptr : check_exceptions(signs, entry.changed, entry.exceptions);
}

Fault check_raw(std::uint32_t elements, const Entry& entry, const std::uint32_t* words) noexcept {
  if (!is_tail_clear(words, 16 * elements)) return "the half word behind its elements is not 0";
  std::uint32_t changed = 0;
  for (std::uint32_t i = 0; i < entry.words; ++i) {
    changed += ((words[i] & 0xFFFF) != 0 ? 1U : 0U) + (words[i] >> 16 != 0 ? 1U : 0U);
  }
  return changed == entry.changed ? nullptr : "it does not change as many elements as it says";
}

// Whether the numbers of an entry go together; looks at no payload.
Fault check_entry(std::uint32_t elements, const Entry& entry) noexcept {
  switch (entry.kind) {
    case Kind::kEmpty:
      return entry.encode() == 0 ? nullptr : "its entry is EMPTY but not 0";
    case Kind::kGap:
      if (entry.changed == 0 || entry.changed > elements) return "its number of changes cannot be";
      if (entry.exceptions > entry.changed) return "it has more exceptions than changes";
      if (entry.words != gap_words(elements, entry.changed, entry.exceptions)) {
        return "its number of words is not that of its changes";
      }
      return entry.words < raw_words(elements) ? nullptr : "it is GAP where RAW is smaller";
    case Kind::kRaw:
      if (entry.changed == 0 || entry.changed > elements) return "its number of changes cannot be";
      if (entry.exceptions != 0) return "it is RAW and has exceptions";
      return entry.words == raw_words(elements) ? nullptr
                                                : "its number of words is not that of its elements";
  }
  return "its kind is unknown";
}

Fault check_payload(const Entry& entry, std::uint32_t elements,
                    const std::uint32_t* words) noexcept {
  if (entry.kind == Kind::kGap) return check_gap(elements, entry, words);
  return entry.kind == Kind::kRaw ? check_raw(elements, entry, words) : nullptr;
}

Status check_sizes(const DeltaView& delta) noexcept {
  if (!is_block_elements(delta.block_elements)) {
    return Status::corrupt("the delta has blocks of " + std::to_string(delta.block_elements) +
                           " elements, not 65536 or 16384");
  }
  const std::uint64_t blocks = block_count(delta.count, delta.block_elements);
  if (delta.entries.size() != blocks) {
    return Status::corrupt("the delta has " + std::to_string(delta.entries.size()) +
                           " entries for " + std::to_string(blocks) + " blocks");
  }
  return {};
}

}  // namespace

Status check_delta(const DeltaView& delta) noexcept {
  ROSE_TRY(check_sizes(delta));
  std::uint64_t offset = 0;
  for (std::size_t block = 0; block < delta.entries.size(); ++block) {
    const Entry entry = Entry::decode(delta.entries[block]);
    const std::uint32_t elements = elements_of_block(
        delta.count, std::uint64_t{block} * delta.block_elements, delta.block_elements);
    Fault fault = check_entry(elements, entry);
    if (fault == nullptr && entry.words > delta.payload.size() - offset) {
      fault = "the payload ends inside it";
    }
    if (fault == nullptr) fault = check_payload(entry, elements, delta.payload.data() + offset);
    if (fault != nullptr) {
      return Status::corrupt("block " + std::to_string(block) + " of the delta: " + fault);
    }
    offset += entry.words;
  }
  if (offset != delta.payload.size()) {
    return Status::corrupt("the delta has " + std::to_string(delta.payload.size() - offset) +
                           " words behind its last block, " + std::to_string(delta.entries.size()) +
                           " blocks in all");
  }
  return {};
}

}  // namespace rose::transfer
