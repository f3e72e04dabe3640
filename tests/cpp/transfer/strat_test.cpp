// STRAT where sanitizers can see it: exact buffers, poisoned buffers, damaged streams.
#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "transfer/block_reader.h"
#include "transfer/block_writer.h"
#include "transfer/class_groups.h"
#include "transfer/class_planes.h"
#include "transfer/delta_apply.h"
#include "transfer/digest.h"
#include "transfer/strat.h"
#include "transfer/strat_decode.h"
#include "transfer/strat_encode.h"
#include "transfer/wire_pack.h"
#include "twice_mapped.h"

using namespace rose;
using namespace rose::transfer;

namespace {

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= best_isa()) all.push_back(isa);
  }
  return all;
}

template <typename T>
ClassRule rule_for() {
  if constexpr (sizeof(T) == 1) return {3, 4, 5, 0b1, {3, 2, 2, 2, 1, 1, 0, 0}};
  if constexpr (sizeof(T) == 2) return {7, 8, 112, 0b11, {6, 4, 2, 2, 2, 2, 1, 0}};
  return {23, 8, 112, 0b1, {20, 4, 2, 2, 2, 2, 1, 0}};
}

// A block with exponents around its rule's origin, and changes of it: small elements change more
// often, as in training.
template <typename T>
struct Block {
  std::vector<T> old;
  std::vector<T> fresh;
  std::vector<std::uint16_t> positions;
  std::vector<T> differences;

  Block(std::size_t count, unsigned per_mille, unsigned seed) {
    std::mt19937 random{seed};
    const ClassRule rule = rule_for<T>();
    for (std::size_t i = 0; i < count; ++i) {
      const auto above = static_cast<unsigned>(random() % 9);
      const auto exponent = static_cast<T>((rule.origin + above) << rule.shift);
      old.push_back(static_cast<T>((random() & ((1U << rule.shift) - 1)) + exponent));
      T by = 0;
      if (random() % 1000 < 4 * per_mille >> above) {
        by = random() % 8 != 0 ? T{1} : static_cast<T>(random() >> random() % 32);
        if (random() % 2 != 0) by = static_cast<T>(T{0} - by);
      }
      fresh.push_back(static_cast<T>(old[i] + by));
      if (by == 0) continue;
      positions.push_back(static_cast<std::uint16_t>(i));
      differences.push_back(by);
    }
  }
  BlockChanges<T> changes() const {
    return {.elements = static_cast<std::uint32_t>(old.size()),
            .changed = static_cast<std::uint32_t>(positions.size()),
            .positions = positions.data(),
            .differences = differences.data()};
  }
  std::uint32_t raw() const {
    return words_of_bits(static_cast<std::uint32_t>(old.size()) * kWidth<T>);
  }
};

constexpr std::uint32_t kNoLimit = 0xFFFF'FFFF;

template <typename T>
std::vector<std::uint32_t> encoded(const Block<T>& block, Isa isa, bool is_after = false,
                                   const ClassRule& rule = rule_for<T>()) {
  auto encoder = StratEncoder<T>::create(static_cast<std::uint32_t>(block.old.size()), rule, isa);
  CHECK(encoder.ok());
  std::vector<std::uint32_t> out(4 * block.old.size() + 64);
  const T* const weights = is_after ? block.fresh.data() : block.old.data();
  out.resize(encoder.value().encode(block.changes(), weights, is_after, kNoLimit, out.data()));
  return out;
}

// Decodes words in a vector of exactly their size; empty unless they are accepted.
template <typename T>
bool is_read_as(StratDecoder<T>& decoder, const std::vector<std::uint32_t>& words,
                const Block<T>& block, std::uint32_t changed, BlockChanges<T>& found) {
  const std::vector<std::uint32_t> exact = words;
  const StratWords received{
      .words = exact.data(), .count = static_cast<std::uint32_t>(exact.size()), .changed = changed};
  return decoder.decode(received, block.old.data(), static_cast<std::uint32_t>(block.old.size()),
                        found) == nullptr;
}

template <typename T>
StratDecoder<T> decoder_for(std::size_t elements, Isa isa) {
  auto decoder = StratDecoder<T>::create(static_cast<std::uint32_t>(elements), rule_for<T>(), isa);
  CHECK(decoder.ok());
  return decoder.take();
}

template <typename T>
void round_trips() {
  for (const std::size_t count : {31, 64, 65, 127, 1021, 16384, 65536}) {
    for (const unsigned per_mille : {1U, 10U, 300U}) {
      const Block<T> block{count, per_mille, 7};
      if (block.positions.empty()) continue;
      const std::vector<std::uint32_t> words = encoded(block, Isa::kPortable);
      for (const Isa isa : isas()) {
        CHECK(encoded(block, isa) == words);
        CHECK(encoded(block, isa, true) == words);
        if (words.size() >= block.raw()) continue;
        StratDecoder<T> decoder = decoder_for<T>(count, isa);
        BlockChanges<T> found;
        CHECK(is_read_as(decoder, words, block, block.changes().changed, found));
        CHECK_EQ(found.changed, block.positions.size());
        CHECK(std::equal(block.positions.begin(), block.positions.end(), found.positions));
        CHECK(std::equal(block.differences.begin(), block.differences.end(), found.differences));
      }
    }
  }
}

// Accepted words must be the only encoding of their changes.
template <typename T>
void refuse_or_same(StratDecoder<T>& decoder, const std::vector<std::uint32_t>& words,
                    const Block<T>& block, std::uint32_t changed, int& taken) {
  BlockChanges<T> found;
  if (!is_read_as(decoder, words, block, changed, found)) return;
  ++taken;
  Block<T> said{0, 0, 1};
  said.old = block.old;
  said.positions.assign(found.positions, found.positions + found.changed);
  said.differences.assign(found.differences, found.differences + found.changed);
  CHECK(encoded(said, Isa::kPortable) == words);
  for (std::size_t i = 0; i < said.positions.size(); ++i) {
    CHECK(said.positions[i] < block.old.size());
    CHECK(said.differences[i] != 0);
    if (i > 0) CHECK(said.positions[i] > said.positions[i - 1]);
  }
}

template <typename T>
void flipped_bits() {
  int taken = 0;
  int tried = 0;
  for (const std::size_t count : {40, 300, 1021}) {
    for (const unsigned per_mille : {20U, 200U}) {
      const Block<T> block{count, per_mille, 21};
      if (block.positions.empty()) continue;
      const std::vector<std::uint32_t> sound = encoded(block, best_isa());
      const auto changed = static_cast<std::uint32_t>(block.positions.size());
      StratDecoder<T> decoder = decoder_for<T>(count, best_isa());
      for (std::size_t bit = 0; bit < 32 * sound.size(); ++bit, ++tried) {
        std::vector<std::uint32_t> damaged = sound;
        damaged[bit / 32] ^= 1U << bit % 32;
        refuse_or_same(decoder, damaged, block, changed, taken);
      }
      for (std::size_t size = 0; size < sound.size() + 3; ++size) {
        std::vector<std::uint32_t> cut = sound;
        cut.resize(size);
        BlockChanges<T> found;
        const bool is_whole = size == sound.size() && size < block.raw();
        CHECK_EQ(is_read_as(decoder, cut, block, changed, found), is_whole);
      }
    }
  }
  CHECK(taken < tried);
}

template <typename T>
void random_words(bool has_empty_classes) {
  std::mt19937 random{31};
  Block<T> block{300, 0, 3};
  // All elements have class 0, so counts of other classes are impossible.
  if (has_empty_classes) std::ranges::fill(block.old, T{0});
  StratDecoder<T> decoder = decoder_for<T>(block.old.size(), best_isa());
  int taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::uint32_t> words(random() % 20);
    // Many 1 bits make small counts, which are sometimes valid.
    for (std::uint32_t& word : words)
      word = static_cast<std::uint32_t>(random() | (i % 2 != 0 ? random() : 0));
    if (i % 4 == 0 && !words.empty()) words.back() &= static_cast<std::uint32_t>(random() % 64);
    refuse_or_same(decoder, words, block, 1 + static_cast<std::uint32_t>(random() % 8), taken);
  }
  CHECK(taken < 20'000);
}

template <typename T>
struct Versions {
  std::vector<T> old;
  std::vector<T> fresh;
  std::vector<std::uint64_t> entries;
  std::vector<std::uint32_t> payload;

  // Many blocks, the last one short, every third empty.
  explicit Versions(unsigned per_mille) {
    auto scratch = EncodeScratch::create(kBlockElementsDense, best_isa());
    for (unsigned i = 0; i < 7; ++i) {
      const Block<T> block{i == 6 ? 777U : kBlockElementsDense, i % 3 == 2 ? 0 : per_mille, i};
      old.insert(old.end(), block.old.begin(), block.old.end());
      fresh.insert(fresh.end(), block.fresh.begin(), block.fresh.end());
      std::vector<std::uint32_t> out(block.raw());
      const Entry entry = encode_block(block.changes(), scratch.value(), out.data());
      entries.push_back(entry.encode());
      payload.insert(payload.end(), out.begin(), out.begin() + entry.words);
    }
  }
  DeltaView view() const {
    return {.count = old.size(),
            .block_elements = kBlockElementsDense,
            .width = kWidth<T>,
            .entries = entries,
            .payload = payload};
  }
};

template <typename T>
StratOptions options_for(std::uint32_t threads = 1) {
  return {.rule = rule_for<T>(), .threads = threads, .isa = best_isa()};
}

template <typename T>
Versions<T> encoded_of(const Versions<T>& versions) {
  auto packed = strat_pack<T>(versions.view(), versions.old, false, options_for<T>());
  CHECK(packed.ok());
  Versions<T> encoded = versions;
  encoded.entries.assign(packed.value().entries.span().begin(),
                         packed.value().entries.span().end());
  encoded.payload.assign(packed.value().payload.span().begin(),
                         packed.value().payload.span().end());
  return encoded;
}

template <typename T>
void whole_deltas() {
  const Versions<T> versions{20};
  const Versions<T> encoded = encoded_of(versions);
  CHECK(encoded.payload.size() < versions.payload.size());
  for (const std::uint32_t threads : {1U, 2U, 3U, 8U, kStratThreadsMax}) {
    auto after = strat_pack<T>(versions.view(), versions.fresh, true, options_for<T>(threads));
    CHECK(after.ok());
    CHECK(std::ranges::equal(after.value().entries.span(), encoded.entries));
    CHECK(std::ranges::equal(after.value().payload.span(), encoded.payload));
    auto back = strat_unpack<T>(encoded.view(), versions.old, options_for<T>(threads));
    CHECK(back.ok());
    CHECK(std::ranges::equal(back.value().entries.span(), versions.entries));
    CHECK(std::ranges::equal(back.value().payload.span(), versions.payload));
  }
}

template <typename T>
void one_pass() {
  const Versions<T> versions{20};
  const Versions<T> encoded = encoded_of(versions);
  for (const Isa isa : isas()) {
    for (const std::uint32_t threads : {1U, 2U, 7U, 64U}) {
      std::vector<T> shadow = versions.old;
      auto packed = wire_pack<T>(
          row_of(versions.fresh.data(), versions.fresh.size()),
          row_of(shadow.data(), shadow.size()),
          {.block_elements = kBlockElementsDense, .isa = isa, .threads = threads}, rule_for<T>());
      CHECK(packed.ok());
      CHECK(shadow == versions.fresh);
      CHECK(std::ranges::equal(packed.value().delta.entries.span(), versions.entries));
      CHECK(std::ranges::equal(packed.value().delta.payload.span(), versions.payload));
      CHECK(std::ranges::equal(packed.value().wire.entries.span(), encoded.entries));
      CHECK(std::ranges::equal(packed.value().wire.payload.span(), encoded.payload));
    }
  }
}

template <typename T>
void wire_pack_while_it_changes() {
  // Half of the elements are large and equal, and some of the small ones differ by 1: for STRAT.
  ClassRule rule = rule_for<T>();
  rule.all_mask = 0;
  std::vector<T> pages(50'000, static_cast<T>((rule.origin + 7) << rule.shift));
  for (std::size_t i = 0; i < pages.size(); i += 2) pages[i] = static_cast<T>(1 + i / 53 % 2);
  for (const Isa isa : isas()) {
    const test::TwiceMapped<T> memory{pages, 2};
    const std::vector<T> old = memory.held();
    auto packed = wire_pack<T>(memory.fresh(), memory.shadow(),
                               {.block_elements = kBlockElementsDense, .isa = isa}, rule);
    CHECK(packed.ok());
    const auto view = [&](const auto& encoded) {
      return DeltaView{.count = old.size(),
                       .block_elements = kBlockElementsDense,
                       .width = kWidth<T>,
                       .entries = encoded.entries.span(),
                       .payload = encoded.payload.span()};
    };
    CHECK(Entry::decode(packed.value().wire.entries[0]).kind == Kind::kStrat);
    auto unpacked = strat_unpack<T>(view(packed.value().wire), old, {.rule = rule});
    CHECK(unpacked.ok());
    CHECK(std::ranges::equal(unpacked.value().payload.span(), packed.value().delta.payload.span()));
    std::vector<T> weights = old;
    CHECK(delta_apply(row_of(weights.data(), weights.size()), view(packed.value().delta), {}).ok());
    CHECK(weights == memory.held());
    CHECK(packed.value().delta.digest == digest<T>(memory.shadow(), {}).value());
  }
}

template <typename T>
void damaged_encodings() {
  const Versions<T> versions{8};
  const Versions<T> sound = encoded_of(versions);
  std::mt19937 random{29};
  int taken = 0;
  for (int i = 0; i < 300; ++i) {
    Versions<T> damaged = sound;
    const std::size_t at = random() % sound.payload.size();
    switch (random() % 6) {
      case 0:
        damaged.payload.resize(at);
        break;
      case 1:
        damaged.payload.resize(sound.payload.size() + 1 + random() % 9);
        break;
      case 2:
        std::swap(damaged.entries[random() % 7], damaged.entries[random() % 7]);
        break;
      case 3:
        damaged.entries[random() % 7] ^= std::uint64_t{1} << random() % 64;
        break;
      case 4:
        damaged.payload[at] = static_cast<std::uint32_t>(random());
        break;
      default:
        std::swap(damaged.payload[at], damaged.payload[random() % sound.payload.size()]);
    }
    auto back = strat_unpack<T>(damaged.view(), versions.old, options_for<T>());
    if (!back.ok()) {
      CHECK_EQ(back.status().code(), Code::kCorrupt);
      continue;
    }
    ++taken;  // its encoding is the only one
    Versions<T> again = damaged;
    again.entries.assign(back.value().entries.span().begin(), back.value().entries.span().end());
    again.payload.assign(back.value().payload.span().begin(), back.value().payload.span().end());
    CHECK(encoded_of(again).payload == damaged.payload);
  }
  CHECK(taken < 300);
}

template <typename T>
void groups_alike() {
  std::mt19937 random{21};
  for (const std::uint32_t changed : {0U, 1U, 31U, 32U, 33U, 1000U}) {
    std::vector<std::uint8_t> classes(changed);  // exact, so that a read behind them is detected
    std::vector<std::uint16_t> ranks(changed);
    std::vector<T> differences(changed);
    std::array<std::vector<std::pair<std::uint16_t, T>>, kClasses> wanted;
    for (std::uint32_t i = 0; i < changed; ++i) {
      classes[i] = static_cast<std::uint8_t>(random() % kClasses & random() % kClasses);
      ranks[i] = static_cast<std::uint16_t>(i);
      differences[i] = static_cast<T>(random());
      wanted[classes[i]].emplace_back(ranks[i], differences[i]);
    }
    for (const Isa isa : isas()) {
      std::vector<std::uint16_t> grouped(changed + kChangesSlack);
      std::vector<T> beside(changed + kChangesSlack);
      const ClassCounts counts = group_by_class<T>(isa, {.changed = changed,
                                                         .classes = classes.data(),
                                                         .ranks = ranks.data(),
                                                         .differences = differences.data(),
                                                         .grouped_ranks = grouped.data(),
                                                         .grouped_differences = beside.data()});
      std::size_t place = 0;
      for (std::uint32_t c = 0; c < kClasses; ++c) {
        CHECK_EQ(counts[c], wanted[c].size());
        for (const auto& [rank, difference] : wanted[c]) {
          CHECK_EQ(grouped[place], rank);
          CHECK_EQ(beside[place++], difference);
        }
      }
    }
  }
}

}  // namespace

TEST(every_isa_finds_the_same_planes_at_every_size_and_offset) {
  const auto try_width = []<typename T>(T) {
    std::mt19937 random{5};
    for (const ClassRule& rule :
         {rule_for<T>(), ClassRule{.shift = 0, .exponent_bits = kWidth<T>, .origin = 255},
          ClassRule{.shift = kWidth<T>, .exponent_bits = 0, .origin = 0},
          ClassRule{.shift = 1, .exponent_bits = 3, .origin = 0}}) {
      for (const std::size_t count : {1, 63, 64, 65, 128, 1000}) {
        for (const std::size_t offset : {0, 1, 3}) {
          std::vector<T> bits(offset + count);
          for (T& one : bits) one = static_cast<T>(random());
          std::vector<ClassPlanes> want(groups_of(static_cast<std::uint32_t>(count)));
          find_planes_portable(bits.data() + offset, static_cast<std::uint32_t>(count), rule,
                               want.data());
          for (const Isa isa : isas()) {
            std::vector<ClassPlanes> got(want.size());
            find_planes(isa, bits.data() + offset, static_cast<std::uint32_t>(count), rule,
                        got.data());
            for (std::size_t i = 0; i < want.size(); ++i) {
              CHECK(std::ranges::equal(got[i].of, want[i].of));
            }
          }
        }
      }
    }
  };
  try_width(std::uint8_t{});
  try_width(std::uint16_t{});
  try_width(std::uint32_t{});
}

TEST(every_isa_groups_the_changes_of_a_class_in_their_order) {
  groups_alike<std::uint8_t>();
  groups_alike<std::uint16_t>();
  groups_alike<std::uint32_t>();
}

TEST(blocks_come_back_bit_for_bit_and_the_new_weights_do_as_well_as_the_old) {
  round_trips<std::uint8_t>();
  round_trips<std::uint16_t>();
  round_trips<std::uint32_t>();
}

TEST(a_block_is_written_whole_and_nothing_behind_it_and_not_at_all_at_its_limit) {
  constexpr std::uint32_t kGuard = 0xDEADBEEF;
  for (const unsigned per_mille : {5U, 40U, 100U}) {
    const Block<std::uint16_t> block{1000, per_mille, 11};
    auto encoder = StratEncoder<std::uint16_t>::create(1000, rule_for<std::uint16_t>(), best_isa());
    std::array<std::vector<std::uint32_t>, 2> out;
    std::uint32_t words = 0;
    // Two poison values: a word that keeps its poison differs between them.
    for (std::size_t i = 0; i < 2; ++i) {
      out[i].assign(4000, i == 0 ? kGuard : ~kGuard);
      words =
          encoder.value().encode(block.changes(), block.old.data(), false, kNoLimit, out[i].data());
    }
    CHECK(words > 0);
    CHECK(std::equal(out[0].begin(), out[0].begin() + words, out[1].begin()));
    CHECK(std::all_of(out[0].begin() + words, out[0].end(),
                      [](std::uint32_t word) { return word == kGuard; }));
    std::vector<std::uint32_t> untouched(4000, kGuard);
    CHECK_EQ(
        encoder.value().encode(block.changes(), block.old.data(), false, words, untouched.data()),
        0);
    CHECK(untouched == std::vector<std::uint32_t>(4000, kGuard));
  }
}

TEST(every_flipped_bit_and_every_cut_is_refused_or_says_another_thing_rightly) {
  flipped_bits<std::uint8_t>();
  flipped_bits<std::uint16_t>();
  flipped_bits<std::uint32_t>();
}

TEST(random_words_are_refused_or_say_something_rightly) {
  for (const bool has_empty_classes : {false, true}) {
    random_words<std::uint8_t>(has_empty_classes);
    random_words<std::uint16_t>(has_empty_classes);
    random_words<std::uint32_t>(has_empty_classes);
  }
}

TEST(whole_deltas_come_back_whatever_the_number_of_threads) {
  whole_deltas<std::uint8_t>();
  whole_deltas<std::uint16_t>();
  whole_deltas<std::uint32_t>();
}

TEST(one_pass_makes_the_delta_and_its_wire_encoding) {
  one_pass<std::uint8_t>();
  one_pass<std::uint16_t>();
  one_pass<std::uint32_t>();
}

TEST(weights_that_change_while_they_are_packed_for_the_wire_are_read_once) {
  wire_pack_while_it_changes<std::uint8_t>();
  wire_pack_while_it_changes<std::uint16_t>();
  wire_pack_while_it_changes<std::uint32_t>();
}

TEST(damaged_encodings_are_refused_or_decode_to_a_sound_delta) {
  damaged_encodings<std::uint8_t>();
  damaged_encodings<std::uint16_t>();
  damaged_encodings<std::uint32_t>();
}

TEST(another_base_is_read_within_its_bounds) {
  const Versions<std::uint16_t> versions{8};
  const Versions<std::uint16_t> encoded = encoded_of(versions);
  std::mt19937 random{3};
  for (int i = 0; i < 50; ++i) {
    std::vector<std::uint16_t> other = versions.old;
    for (int k = 0; k < 1 + i * 200; ++k) {
      other[random() % other.size()] = static_cast<std::uint16_t>(random());
    }
    auto back = strat_unpack<std::uint16_t>(encoded.view(), other, options_for<std::uint16_t>(2));
    if (!back.ok()) CHECK_EQ(back.status().code(), Code::kCorrupt);
  }
}

TEST(a_fault_names_its_block) {
  const Versions<std::uint16_t> versions{8};
  Versions<std::uint16_t> encoded = encoded_of(versions);
  encoded.payload.back() ^= 0x8000'0000;
  auto back =
      strat_unpack<std::uint16_t>(encoded.view(), versions.old, options_for<std::uint16_t>(4));
  CHECK(back.status().message().starts_with("block 6 of the delta: "));
}

TEST(a_block_that_did_not_get_smaller_is_refused) {
  const Block<std::uint16_t> block{1000, 10, 9};
  StratOptions wasteful = options_for<std::uint16_t>();
  wasteful.rule.all_mask = 0xFF;
  wasteful.rule.magnitude_bits.fill(15);
  const std::vector<std::uint32_t> words = encoded(block, best_isa(), false, wasteful.rule);
  CHECK(!words.empty());
  const std::vector<std::uint64_t> entries{Entry{.kind = Kind::kStrat,
                                                 .changed = block.changes().changed,
                                                 .listed = 0,
                                                 .words = static_cast<std::uint32_t>(words.size())}
                                               .encode()};
  const DeltaView encoded{
      .count = block.old.size(), .width = 16, .entries = entries, .payload = words};
  auto back = strat_unpack<std::uint16_t>(encoded, block.old, wasteful);
  CHECK(back.status().message().ends_with(
      "it is STRAT, so it must take fewer words than in its other encoding"));
}

TEST(what_cannot_be_recoded_is_refused) {
  const Versions<std::uint16_t> versions{8};
  StratOptions options = options_for<std::uint16_t>();
  const std::vector<std::uint16_t> fewer(5);
  CHECK_EQ(strat_pack<std::uint16_t>(versions.view(), fewer, false, options).status().code(),
           Code::kInvalidArgument);
  const std::vector<std::uint8_t> narrower(versions.old.size());
  CHECK_EQ(strat_pack<std::uint8_t>(versions.view(), narrower, false, options_for<std::uint8_t>())
               .status()
               .code(),
           Code::kInvalidArgument);
  for (const std::uint32_t threads : {0U, kStratThreadsMax + 1}) {
    options.threads = threads;
    CHECK_EQ(strat_unpack<std::uint16_t>(versions.view(), versions.old, options).status().code(),
             Code::kInvalidArgument);
  }
  options = options_for<std::uint16_t>();
  options.rule.magnitude_bits[3] = 16;
  CHECK_EQ(strat_unpack<std::uint16_t>(versions.view(), versions.old, options).status().code(),
           Code::kCorrupt);
  options = options_for<std::uint16_t>();
  options.rule.exponent_bits = 10;
  CHECK_EQ(strat_unpack<std::uint16_t>(versions.view(), versions.old, options).status().code(),
           Code::kCorrupt);
}
