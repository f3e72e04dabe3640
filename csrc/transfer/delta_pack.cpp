#include "transfer/delta_pack.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "transfer/change_key.h"
#include "transfer/digest.h"
#include "transfer/elias_fano.h"

namespace rose::transfer {

namespace {

// Elements of which both arrays stay in the first-level cache while they are compared and digested.
constexpr std::uint32_t kTileElements = 4096;
constexpr std::uint64_t kWordElements = 4;

constexpr std::uint16_t kStepUp = 1;
constexpr std::uint16_t kStepDown = 0xFFFF;

std::uint16_t step_of(std::uint16_t fresh, std::uint16_t old) noexcept {
  return static_cast<std::uint16_t>(fresh - old);
}

bool is_step(std::uint16_t fresh, std::uint16_t old) noexcept {
  const std::uint16_t step = step_of(fresh, old);
  return step == kStepUp || step == kStepDown;
}

// The two arrays of a pack, element by element.
struct Weights {
  const std::uint16_t* fresh;
  std::uint16_t* shadow;
};

// Room for what one block changes, used again for every block.
class Scratch {
 public:
  static Result<Scratch> create(std::size_t elements) noexcept {
    Scratch scratch;
    for (Buffer<std::uint16_t>* const room :
         {&scratch.positions_, &scratch.fresh_, &scratch.old_, &scratch.exceptions_}) {
      auto made = Buffer<std::uint16_t>::create(elements + kFoundSlack);
      if (!made.ok()) return made.status();
      *room = made.take();
    }
    return scratch;
  }

  // Finds what `elements` <= a tile change from `base` on, moves the shadow there, and adds the
  // shadow to the digest.
  void take_tile(Weights at, std::uint32_t elements, std::uint32_t base, std::uint64_t first_word,
                 const PackOptions& options, Digest& digest) noexcept {
    std::uint16_t* const found = positions_.data() + changed_;
    if (options.threshold == 0 && elements % kWordElements == 0) {
      // All that differs is sent, so the shadow becomes what is fresh.
      const std::size_t words = elements / kWordElements;
      take(at, base,
           find_and_add(options.isa, at.fresh, at.shadow, words, base, first_word, found, digest));
      return;
    }
    std::size_t count = find_changed(options.isa, at.fresh, at.shadow, elements, base, found);
    if (options.threshold > 0) count = keep_large(at, found, count, base, options.threshold);
    take(at, base, count);
    add_elements(options.isa, at.shadow, elements, first_word, 0, digest);
  }

  // What was found since the last call.
  BlockChanges take_block(std::uint32_t elements) noexcept {
    return {.elements = elements,
            .changed = std::exchange(changed_, 0U),
            .positions = positions_.data(),
            .fresh = fresh_.data(),
            .old = old_.data(),
            .exceptions = exceptions_.data()};
  }

 private:
  void take(Weights at, std::uint32_t base, std::size_t count) noexcept {
    const std::uint16_t* const found = positions_.data() + changed_;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t in_tile = found[i] - base;
      fresh_[changed_] = at.fresh[in_tile];
      old_[changed_++] = std::exchange(at.shadow[in_tile], at.fresh[in_tile]);
    }
  }
  static std::size_t keep_large(Weights at, std::uint16_t* found, std::size_t count,
                                std::uint32_t base, std::uint32_t threshold) noexcept {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t in_tile = found[i] - base;
      found[kept] = found[i];
      kept += change_key(at.fresh[in_tile], at.shadow[in_tile]) >= threshold ? 1 : 0;
    }
    return kept;
  }

  Buffer<std::uint16_t> positions_;
  Buffer<std::uint16_t> fresh_;
  Buffer<std::uint16_t> old_;
  Buffer<std::uint16_t> exceptions_;
  std::uint32_t changed_{0};
};

// Writes the rank of each exception; returns how many.
std::uint32_t find_exceptions(const BlockChanges& block) noexcept {
  std::uint32_t count = 0;
  for (std::uint32_t rank = 0; rank < block.changed; ++rank) {
    block.exceptions[count] = static_cast<std::uint16_t>(rank);
    count += is_step(block.fresh[rank], block.old[rank]) ? 0U : 1U;
  }
  return count;
}

std::uint32_t xor_of(const BlockChanges& block, std::uint32_t rank) noexcept {
  return static_cast<std::uint32_t>(block.fresh[rank] ^ block.old[rank]);
}

void encode_raw(const BlockChanges& block, std::uint32_t* out) noexcept {
  std::fill_n(out, raw_words(block.elements), 0U);
  for (std::uint32_t i = 0; i < block.changed; ++i) {
    const std::uint32_t position = block.positions[i];
    out[position / 2] |= xor_of(block, i) << (position % 2 * 16);
  }
}

void encode_gap(const BlockChanges& block, std::uint32_t exceptions, std::uint32_t* out) noexcept {
  out = write_elias_fano(block.positions, block.changed, block.elements, out);
  BitWriter signs{out};
  for (std::uint32_t i = 0; i < block.changed; ++i) {
    signs.put(step_of(block.fresh[i], block.old[i]) == kStepDown ? 1 : 0, 1);
  }
  signs.finish();
  if (exceptions == 0) return;
  out = write_elias_fano(block.exceptions, exceptions, block.changed,
                         out + words_of_bits(block.changed));
  BitWriter values{out};
  for (std::uint32_t i = 0; i < exceptions; ++i) values.put(xor_of(block, block.exceptions[i]), 16);
  values.finish();
}

bool overlap(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b) noexcept {
  const std::less<const std::uint16_t*> before;
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

Status check(std::span<const std::uint16_t> fresh, std::span<const std::uint16_t> shadow,
             const PackOptions& options) noexcept {
  if (!is_block_elements(options.block_elements)) {
    return Status::invalid_argument("block_elements " + std::to_string(options.block_elements) +
                                    ": choose 65536 or 16384");
  }
  if (fresh.size() != shadow.size()) {
    return Status::invalid_argument("new has " + std::to_string(fresh.size()) +
                                    " elements and shadow " + std::to_string(shadow.size()));
  }
  if (options.threshold > kNothingSent) {
    return Status::invalid_argument("threshold " + std::to_string(options.threshold) +
                                    " is above 32768, which already sends nothing");
  }
  if (overlap(fresh, shadow)) {
    return Status::invalid_argument("new and shadow overlap in memory: the shadow is a copy");
  }
  return {};
}

// The most words a payload can have: every block RAW.
std::uint64_t payload_words_max(std::uint64_t count, std::uint32_t block_elements) noexcept {
  return count / block_elements * raw_words(block_elements) +
         raw_words(static_cast<std::uint32_t>(count % block_elements));
}

}  // namespace

Entry encode_block(const BlockChanges& block, std::uint32_t* out) noexcept {
  if (block.changed == 0) return {};
  const std::uint32_t exceptions = find_exceptions(block);
  const std::uint32_t gap = gap_words(block.elements, block.changed, exceptions);
  const std::uint32_t raw = raw_words(block.elements);
  if (gap < raw) {
    encode_gap(block, exceptions, out);
    return {.kind = Kind::kGap, .changed = block.changed, .exceptions = exceptions, .words = gap};
  }
  encode_raw(block, out);
  return {.kind = Kind::kRaw, .changed = block.changed, .exceptions = 0, .words = raw};
}

Result<PackedDelta> delta_pack(std::span<const std::uint16_t> fresh,
                               std::span<std::uint16_t> shadow, PackOptions options) noexcept {
  ROSE_TRY(check(fresh, shadow, options));
  const std::uint64_t count = fresh.size();
  // All room is there before the shadow moves: nothing can fail half-way.
  auto scratch = Scratch::create(std::min<std::uint64_t>(count, options.block_elements));
  if (!scratch.ok()) return scratch.status();
  auto entries = Buffer<std::uint64_t>::create(block_count(count, options.block_elements));
  if (!entries.ok()) return entries.status();
  auto payload = Buffer<std::uint32_t>::create(payload_words_max(count, options.block_elements));
  if (!payload.ok()) return payload.status();

  PackedDelta packed{.entries = entries.take(), .payload = payload.take(), .digest = {}};
  std::uint64_t words = 0;
  for (std::size_t block = 0; block < packed.entries.size(); ++block) {
    const std::uint64_t first = std::uint64_t{block} * options.block_elements;
    const std::uint32_t elements = elements_of_block(count, first, options.block_elements);
    for (std::uint32_t base = 0; base < elements; base += kTileElements) {
      const std::uint32_t tile = std::min(kTileElements, elements - base);
      const Weights at{fresh.data() + first + base, shadow.data() + first + base};
      scratch.value().take_tile(at, tile, base, (first + base) / kWordElements, options,
                                packed.digest);
    }
    const Entry entry =
        encode_block(scratch.value().take_block(elements), packed.payload.data() + words);
    packed.entries[block] = entry.encode();
    words += entry.words;
  }
  packed.payload.shrink(words);
  return packed;
}

}  // namespace rose::transfer
