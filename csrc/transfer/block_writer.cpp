#include "transfer/block_writer.h"

#include <array>
#include <cstring>

#include "transfer/elias_fano.h"
#include "transfer/signs.h"

namespace rose::transfer {

namespace {

// Number of magnitudes of each bit width, 0 to 32.
using Histogram = std::array<std::uint32_t, 33>;

struct MagnitudeShape {
  std::uint32_t bits{0};
  std::uint32_t large{0};
  std::uint32_t words{0};
};

// Returns the width with which `listed` > 0 magnitudes take the fewest words; if several do, the
// smallest of them.
MagnitudeShape best_shape(const Histogram& sizes, std::uint32_t listed,
                          std::uint32_t width) noexcept {
  MagnitudeShape best{.bits = 0, .large = 0, .words = ~0U};
  std::uint32_t large = listed;
  for (std::uint32_t bits = 0; bits < width; ++bits) {
    large -= sizes[bits];
    if (words_of_bits(listed * bits) >= best.words) break;  // larger widths take more
    const std::uint32_t words = magnitude_words(listed, large, bits, width);
    if (words < best.words) best = {.bits = bits, .large = large, .words = words};
    if (large == 0) break;
  }
  return best;
}

struct Listing {
  std::uint32_t listed{0};
  MagnitudeShape magnitudes;
  std::uint32_t words{0};  // size of all sections behind the signs
};

// Lists the changes with a size other than 1, or all changes if that takes fewer words.
template <ElementBits T>
Listing best_listing(const BlockChanges<T>& changes, const EncodeScratch& scratch) noexcept {
  std::uint16_t* const ranks = scratch.ranks();
  const std::uint32_t few = find_listed(scratch.isa(), changes.differences, changes.changed, ranks);
  if (few == 0) return {};
  Histogram of_few{};
  Histogram of_all{};
  of_all[0] = changes.changed - few;
  for (std::uint32_t i = 0; i < few; ++i) {
    const std::uint32_t size = size_of(changes.differences[ranks[i]]);
    ++of_few[static_cast<std::uint32_t>(std::bit_width(size - 2))];
    ++of_all[static_cast<std::uint32_t>(std::bit_width(size - 1))];
  }
  const MagnitudeShape all = best_shape(of_all, changes.changed, kWidth<T>);
  const std::uint32_t all_words = 1 + all.words;
  if (few < changes.changed) {
    const MagnitudeShape only = best_shape(of_few, few, kWidth<T>);
    const std::uint32_t few_words = 1 + only.words + rank_words(changes.changed, few);
    if (few_words <= all_words) return {.listed = few, .magnitudes = only, .words = few_words};
  }
  return {.listed = changes.changed, .magnitudes = all, .words = all_words};
}

template <ElementBits T>
void write_raw(const BlockChanges<T>& changes, std::uint32_t* out) noexcept {
  std::fill_n(out, raw_words(changes.elements, kWidth<T>), 0U);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(out);
  for (std::uint32_t i = 0; i < changes.changed; ++i) {
    std::memcpy(bytes + sizeof(T) * changes.positions[i], changes.differences + i, sizeof(T));
  }
}

template <ElementBits T>
std::uint32_t* write_signs(const BlockChanges<T>& changes, std::uint32_t* out) noexcept {
  for (std::uint32_t first = 0; first < changes.changed; first += kSignsAtOnce) {
    *out++ = signs_of(changes.differences + first, changes.changed - first);
  }
  return out;
}

// Writes the sections of listed changes: shape, ranks, magnitudes, large ranks and large
// magnitudes.
template <ElementBits T>
void write_listed(const BlockChanges<T>& changes, const BlockPlan& plan,
                  const EncodeScratch& scratch, std::uint32_t* out) noexcept {
  const std::uint32_t listed = plan.entry.listed;
  const bool is_all = listed == changes.changed;
  const std::uint32_t least = is_all ? 1 : 2;
  const auto magnitude_of = [&](std::uint32_t i) noexcept {
    return size_of(changes.differences[is_all ? i : scratch.ranks()[i]]) - least;
  };
  *out++ = plan.magnitude_bits | plan.large << 8;
  if (!is_all) out = write_elias_fano(scratch.isa(), scratch.ranks(), listed, changes.changed, out);
  BitWriter fields{out};
  std::uint32_t larges = 0;
  for (std::uint32_t i = 0; i < listed; ++i) {
    const std::uint32_t magnitude = magnitude_of(i);
    const bool is_large = magnitude >> plan.magnitude_bits != 0;
    if (plan.magnitude_bits != 0) fields.put(is_large ? 0 : magnitude, plan.magnitude_bits);
    scratch.larges()[larges] = static_cast<std::uint16_t>(i);
    larges += is_large ? 1 : 0;
  }
  out = fields.finish();
  if (larges == 0) return;
  out = write_elias_fano(scratch.isa(), scratch.larges(), larges, listed, out);
  BitWriter wide{out};
  for (std::uint32_t i = 0; i < larges; ++i) {
    wide.put(magnitude_of(scratch.larges()[i]), kWidth<T>);
  }
  static_cast<void>(wide.finish());
}

}  // namespace

Result<EncodeScratch> EncodeScratch::create(std::size_t elements, Isa isa) noexcept {
  EncodeScratch scratch;
  scratch.isa_ = isa;
  for (Buffer<std::uint16_t>* const room : {&scratch.ranks_, &scratch.larges_}) {
    auto made = Buffer<std::uint16_t>::create(elements + kChangesSlack);
    if (!made.ok()) return made.status();
    *room = made.take();
  }
  return scratch;
}

template <ElementBits T>
BlockPlan plan_block(const BlockChanges<T>& changes, const EncodeScratch& scratch) noexcept {
  if (changes.changed == 0) return {};
  const Listing listing = best_listing(changes, scratch);
  const std::uint32_t rest = words_of_bits(changes.changed) + listing.words;
  BlockPlan best{.entry = {.kind = Kind::kRaw,
                           .changed = changes.changed,
                           .listed = 0,
                           .words = raw_words(changes.elements, kWidth<T>)}};
  for (const Kind kind : {Kind::kGap, Kind::kBitmap}) {
    const std::uint32_t words = position_words(kind, changes.elements, changes.changed) + rest;
    if (words >= best.entry.words) continue;
    best = {.entry = {.kind = kind,
                      .changed = changes.changed,
                      .listed = listing.listed,
                      .words = words},
            .magnitude_bits = listing.magnitudes.bits,
            .large = listing.magnitudes.large};
  }
  return best;
}

template <ElementBits T>
void write_block(const BlockChanges<T>& changes, const BlockPlan& plan,
                 const EncodeScratch& scratch, std::uint32_t* out) noexcept {
  if (plan.entry.kind == Kind::kEmpty) return;
  if (plan.entry.kind == Kind::kRaw) {
    write_raw(changes, out);
    return;
  }
  const Isa isa = scratch.isa();
  if (plan.entry.kind == Kind::kGap) {
    out = write_elias_fano(isa, changes.positions, changes.changed, changes.elements, out);
  } else {
    const SetPlaces set{.numbers = changes.positions, .count = changes.changed};
    out = write_set(isa, set, words_of_bits(changes.elements), out);
  }
  out = write_signs(changes, out);
  if (plan.entry.listed != 0) write_listed(changes, plan, scratch, out);
}

#define ROSE_BLOCK_WRITER(T)                                                                \
  template BlockPlan plan_block(const BlockChanges<T>&, const EncodeScratch&) noexcept;     \
  template void write_block(const BlockChanges<T>&, const BlockPlan&, const EncodeScratch&, \
                            std::uint32_t*) noexcept;
ROSE_BLOCK_WRITER(std::uint8_t)
ROSE_BLOCK_WRITER(std::uint16_t)
ROSE_BLOCK_WRITER(std::uint32_t)
#undef ROSE_BLOCK_WRITER

}  // namespace rose::transfer
