// The codec where sanitizers can see it: exact buffers, poisoned buffers, damaged deltas.
#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "check.h"
#include "transfer/delta_apply.h"
#include "transfer/delta_check.h"
#include "transfer/delta_pack.h"
#include "transfer/digest.h"
#include "transfer/elias_fano.h"
#include "transfer/topk.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace rose;
using namespace rose::transfer;

namespace {

using Bits = std::vector<std::uint16_t>;

struct Versions {
  Bits fresh;
  Bits old;
};

// `per_mille` of the elements differ, nine tenths of those by a step of one.
Versions versions(std::size_t count, unsigned per_mille, unsigned seed) {
  std::mt19937 random{seed};
  Versions made;
  for (std::size_t i = 0; i < count; ++i) {
    const auto old = static_cast<std::uint16_t>(random());
    std::uint16_t by = 0;
    if (random() % 1000 < per_mille) {
      const bool is_step = random() % 10 != 0;
      by = is_step ? (random() % 2 != 0 ? std::uint16_t{1} : std::uint16_t{0xFFFF})
                   : static_cast<std::uint16_t>(2 + random() % 0xFFFC);
    }
    made.old.push_back(old);
    made.fresh.push_back(static_cast<std::uint16_t>(old + by));
  }
  return made;
}

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= best_isa()) all.push_back(isa);
  }
  return all;
}

// A delta in vectors of exactly its size, so that a read behind them is seen.
struct OwnDelta {
  std::uint64_t count;
  std::uint32_t block_elements;
  std::vector<std::uint64_t> entries;
  std::vector<std::uint32_t> payload;
  Digest digest;

  DeltaView view() const { return {count, block_elements, entries, payload}; }
};

OwnDelta pack(const Bits& fresh, Bits& shadow, PackOptions options = {}) {
  auto packed = delta_pack(fresh, shadow, options);
  CHECK(packed.ok());
  const auto entries = packed.value().entries.span();
  const auto payload = packed.value().payload.span();
  return {fresh.size(),
          options.block_elements,
          {entries.begin(), entries.end()},
          {payload.begin(), payload.end()},
          packed.value().digest};
}

}  // namespace

TEST(every_isa_packs_the_same_bits_at_every_size_and_offset) {
  for (const std::size_t count : {0, 1, 3, 4, 5, 31, 32, 33, 63, 64, 65, 129, 4095, 4097, 16385}) {
    for (const unsigned per_mille : {0U, 10U, 300U, 1000U}) {
      const Versions at_0 = versions(count, per_mille, 7);
      Bits shadow = at_0.old;
      const OwnDelta want = pack(at_0.fresh, shadow, {.block_elements = 16384});
      CHECK(shadow == at_0.fresh);
      for (const Isa isa : isas()) {
        for (const std::size_t offset : {0, 1, 3}) {
          // Buffers that end with the last element.
          Bits fresh(offset + count);
          Bits moved(offset + count);
          std::copy(at_0.fresh.begin(), at_0.fresh.end(), fresh.begin() + std::ptrdiff_t(offset));
          std::copy(at_0.old.begin(), at_0.old.end(), moved.begin() + std::ptrdiff_t(offset));
          auto packed =
              delta_pack(std::span<const std::uint16_t>{fresh}.subspan(offset),
                         std::span{moved}.subspan(offset), {.block_elements = 16384, .isa = isa});
          CHECK(packed.ok());
          CHECK(std::ranges::equal(packed.value().entries.span(), want.entries));
          CHECK(std::ranges::equal(packed.value().payload.span(), want.payload));
          CHECK(packed.value().digest == want.digest);
          CHECK(moved == fresh);
        }
      }
    }
  }
}

TEST(apply_and_undo_are_exact) {
  for (const std::size_t count : {1, 33, 16384, 70000}) {
    for (const unsigned per_mille : {10U, 500U, 1000U}) {
      const Versions made = versions(count, per_mille, 3);
      Bits shadow = made.old;
      const OwnDelta delta = pack(made.fresh, shadow);
      Bits weights = made.old;
      CHECK(delta_apply(weights, delta.view(), false).ok());
      CHECK(weights == made.fresh);
      CHECK(delta_apply(weights, delta.view(), true).ok());
      CHECK(weights == made.old);
    }
  }
}

TEST(a_block_is_written_whole_and_nothing_behind_it) {
  constexpr std::uint32_t kGuard = 0xDEADBEEF;
  for (const std::size_t count : {1, 10, 33, 1000, 65536}) {
    for (const unsigned per_mille : {5U, 100U, 600U, 1000U}) {
      const Versions made = versions(count, per_mille, 11);
      Bits positions;
      Bits fresh;
      Bits old;
      for (std::size_t i = 0; i < count; ++i) {
        if (made.fresh[i] == made.old[i]) continue;
        positions.push_back(static_cast<std::uint16_t>(i));
        fresh.push_back(made.fresh[i]);
        old.push_back(made.old[i]);
      }
      Bits exceptions(positions.size() + 1);
      const BlockChanges block{.elements = static_cast<std::uint32_t>(count),
                               .changed = static_cast<std::uint32_t>(positions.size()),
                               .positions = positions.data(),
                               .fresh = fresh.data(),
                               .old = old.data(),
                               .exceptions = exceptions.data()};
      std::array<std::vector<std::uint32_t>, 2> out;
      Entry entry;
      // Two poisons: a word that keeps its poison differs between them.
      for (std::size_t i = 0; i < 2; ++i) {
        out[i].assign(raw_words(block.elements) + 4, i == 0 ? kGuard : ~kGuard);
        entry = encode_block(block, out[i].data());
        CHECK(entry.words <= raw_words(block.elements));
      }
      CHECK(std::equal(out[0].begin(), out[0].begin() + entry.words, out[1].begin()));
      CHECK(std::all_of(out[0].begin() + entry.words, out[0].end(),
                        [](std::uint32_t word) { return word == kGuard; }));
    }
  }
}

TEST(find_changed_writes_no_further_than_its_slack) {
  for (const Isa isa : isas()) {
    for (const std::size_t count : {1, 31, 32, 63, 64, 65, 200}) {
      for (const unsigned per_mille : {0U, 30U, 1000U}) {
        const Versions made = versions(count, per_mille, 5);
        Bits found(count + kFoundSlack);  // ASan guards its end
        const std::size_t changed =
            find_changed(isa, made.fresh.data(), made.old.data(), count, 100, found.data());
        std::size_t next = 0;
        for (std::size_t i = 0; i < count; ++i) {
          if (made.fresh[i] != made.old[i]) CHECK_EQ(found[next++], 100 + i);
        }
        CHECK_EQ(changed, next);
      }
    }
  }
}

// Applies a damaged delta: it must be refused and change nothing, or be undone exactly.
void try_damaged(const OwnDelta& damaged, const Bits& base) {
  Bits weights = base;
  const Status status = delta_apply(weights, damaged.view(), false);
  if (!status.ok()) {
    CHECK_EQ(status.code(), Code::kCorrupt);
    CHECK(weights == base);
    CHECK(!topk_unpack(damaged.view(), base).ok());
    return;
  }
  auto unpacked = topk_unpack(damaged.view(), base);
  CHECK(unpacked.ok());
  for (std::size_t i = 0; i < unpacked.value().positions.size(); ++i) {
    const auto position = static_cast<std::size_t>(unpacked.value().positions[i]);
    CHECK_EQ(weights[position], unpacked.value().values[i]);
  }
  CHECK(delta_apply(weights, damaged.view(), true).ok());
  CHECK(weights == base);
}

TEST(every_flipped_bit_is_refused_or_harmless) {
  for (const std::size_t count : {1, 2, 33, 300}) {
    for (const unsigned per_mille : {20U, 200U, 900U}) {
      const Versions made = versions(count, per_mille, 21);
      Bits shadow = made.old;
      const OwnDelta sound = pack(made.fresh, shadow);
      for (std::size_t bit = 0; bit < 64 * sound.entries.size(); ++bit) {
        OwnDelta damaged = sound;
        damaged.entries[bit / 64] ^= std::uint64_t{1} << bit % 64;
        try_damaged(damaged, made.old);
      }
      for (std::size_t bit = 0; bit < 32 * sound.payload.size(); ++bit) {
        OwnDelta damaged = sound;
        damaged.payload[bit / 32] ^= 1U << bit % 32;
        try_damaged(damaged, made.old);
      }
    }
  }
}

TEST(cut_extended_and_shuffled_deltas_are_refused_or_harmless) {
  const Versions made = versions(3 * 16384 + 77, 8, 23);
  Bits shadow = made.old;
  const OwnDelta sound = pack(made.fresh, shadow, {.block_elements = 16384});
  std::mt19937 random{29};
  for (int i = 0; i < 200; ++i) {
    OwnDelta damaged = sound;
    switch (random() % 5) {
      case 0:
        damaged.payload.resize(random() % sound.payload.size());
        break;
      case 1:
        damaged.payload.resize(sound.payload.size() + 1 + random() % 9);
        break;
      case 2:
        std::swap(damaged.entries[random() % 4], damaged.entries[random() % 4]);
        break;
      case 3:
        damaged.entries.resize(random() % 8);
        break;
      default:
        std::swap(damaged.payload[random() % sound.payload.size()],
                  damaged.payload[random() % sound.payload.size()]);
    }
    try_damaged(damaged, made.old);
  }
}

TEST(random_words_are_refused_or_harmless) {
  std::mt19937 random{31};
  const Bits base = versions(200, 0, 1).old;
  int taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint32_t changed = 1 + static_cast<std::uint32_t>(random()) % 12;
    const std::uint32_t exceptions = static_cast<std::uint32_t>(random()) % (changed + 1);
    const Entry entry{.kind = Kind::kGap,
                      .changed = changed,
                      .exceptions = exceptions,
                      .words = gap_words(200, changed, exceptions)};
    OwnDelta made{200, kBlockElementsMax, {entry.encode()}, {}, {}};
    // Few bits, so that the number of positions is sometimes right.
    for (std::uint32_t w = 0; w < entry.words; ++w) {
      made.payload.push_back(static_cast<std::uint32_t>(random() & random() & random()));
    }
    taken += check_delta(made.view()).ok() ? 1 : 0;
    try_damaged(made, base);
  }
  CHECK(taken < 20'000);
}

TEST(elias_fano_goes_there_and_back) {
  std::mt19937 random{37};
  for (const std::uint32_t universe : {1U, 2U, 31U, 1000U, 16384U, 65536U}) {
    for (const std::uint32_t wanted : {1U, 2U, 30U, universe / 2, universe - 1, universe}) {
      const std::uint32_t count = std::clamp(wanted, 1U, universe);
      Bits all(universe);
      for (std::uint32_t i = 0; i < universe; ++i) all[i] = static_cast<std::uint16_t>(i);
      Bits positions;
      std::ranges::sample(all, std::back_inserter(positions), count, random);
      const EliasFanoShape shape{universe, count};
      std::vector<std::uint32_t> words(shape.words());
      CHECK(write_elias_fano(positions.data(), count, universe, words.data()) ==
            words.data() + words.size());
      EliasFanoReader reader{words.data(), universe, count};
      for (const std::uint16_t position : positions) CHECK_EQ(reader.next(), position);
    }
  }
}

TEST(no_block_needs_more_words_than_its_entry_can_say) {
  constexpr std::uint32_t kFieldMax = (1U << 20) - 1;
  static_assert(raw_words(kBlockElementsMax) <= kFieldMax && kBlockElementsMax <= kFieldMax);
  const Entry entry{
      .kind = Kind::kRaw, .changed = kFieldMax, .exceptions = kFieldMax, .words = kFieldMax};
  const Entry again = Entry::decode(entry.encode());
  CHECK_EQ(again.changed, kFieldMax);
  CHECK_EQ(again.exceptions, kFieldMax);
  CHECK_EQ(again.words, kFieldMax);
  CHECK(again.kind == Kind::kRaw);
}

TEST(sizes_beyond_32_bits_are_right) {
  constexpr std::uint64_t k2To31 = std::uint64_t{1} << 31;
  constexpr std::uint64_t k2To40 = std::uint64_t{1} << 40;
  static_assert(block_count(0, 65536) == 0 && block_count(1, 65536) == 1);
  static_assert(block_count(k2To31 + 1, 65536) == 32769);
  static_assert(block_count(k2To40 - 1, 16384) == 1U << 26);
  static_assert(block_count(~std::uint64_t{0}, 16384) == std::uint64_t{1} << 50);
  static_assert(elements_of_block(k2To40 + 5, k2To40, 65536) == 5);
  static_assert(elements_of_block(k2To40 + 70000, k2To40, 65536) == 65536);
  const Bits bits = versions(8, 0, 1).old;
  for (const std::uint64_t first : {k2To31, k2To40, std::uint64_t{1} << 63}) {
    auto whole = digest(bits, first, 9, Isa::kPortable);
    auto low = digest(std::span{bits}.first(4), first, 9, Isa::kPortable);
    auto high = digest(std::span{bits}.subspan(4), first + 4, 9, Isa::kPortable);
    CHECK_EQ(whole.value().first, low.value().first + high.value().first);
    CHECK_EQ(whole.value().second, low.value().second + high.value().second);
  }
}

TEST(what_cannot_be_packed_is_refused_and_changes_nothing) {
  Bits memory(64, 5);
  const std::span<std::uint16_t> all{memory};
  CHECK_EQ(delta_pack(all.first(8), all.subspan(7, 8), {}).status().code(), Code::kInvalidArgument);
  CHECK_EQ(delta_pack(all.first(8), all.subspan(8, 7), {}).status().code(), Code::kInvalidArgument);
  CHECK_EQ(delta_pack(all.first(8), all.subspan(8, 8), {.block_elements = 100}).status().code(),
           Code::kInvalidArgument);
  CHECK_EQ(delta_pack(all.first(8), all.subspan(8, 8), {.threshold = 32769}).status().code(),
           Code::kInvalidArgument);
  CHECK(delta_pack(all.first(8), all.subspan(8, 8), {.threshold = 32768}).ok());
  CHECK_EQ(digest(all, 6, 0, Isa::kPortable).status().code(), Code::kInvalidArgument);
  CHECK(memory == Bits(64, 5));
}

TEST(keys_follow_the_size_of_a_change) {
  const auto key = [](unsigned fresh, unsigned old) {
    return change_key(static_cast<std::uint16_t>(fresh), static_cast<std::uint16_t>(old));
  };
  CHECK_EQ(key(0x3F80, 0x0000), 0x3F80);   // 1 - 0
  CHECK_EQ(key(0x0000, 0xBF80), 0x3F80);   // 0 - -1
  CHECK_EQ(key(0x3F81, 0x3F80), 0x3C00);   // one ULP of 1 is 2^-7
  CHECK_EQ(key(0x8000, 0x0000), 0);        // the sign of a zero
  CHECK_EQ(key(0x007F, 0x0001), 0);        // subnormals
  CHECK_EQ(key(0x0081, 0x0080), 0);        // a subnormal difference
  CHECK_EQ(key(0x7F80, 0xFF80), 0x7F80);   // infinite
  CHECK_EQ(key(0x7F81, 0x0000), kKeyNan);  // a NaN among the two
  CHECK_EQ(key(0x3F80, 0xFFC0), kKeyNan);
  CHECK_EQ(key(0x7F7F, 0xFF7F), 0x7F80);  // the difference overflows
}

#if defined(__x86_64__)
TEST(flushing_subnormals_changes_nothing) {
  constexpr unsigned kFlushAll = 0x8040;  // FTZ and DAZ
  const unsigned before = _mm_getcsr();
  std::vector<std::uint32_t> keys;
  for (const unsigned mode : {before & ~kFlushAll, before | kFlushAll}) {
    _mm_setcsr(mode);
    std::size_t i = 0;
    for (std::uint32_t fresh = 0; fresh < 0x10000; fresh += 0x3F) {
      for (std::uint32_t old = 0; old < 0x10000; old += 0x1FF) {
        const std::uint32_t key =
            change_key(static_cast<std::uint16_t>(fresh), static_cast<std::uint16_t>(old));
        if (mode == (before & ~kFlushAll)) {
          keys.push_back(key);
        } else {
          CHECK_EQ(key, keys[i++]);
        }
      }
    }
  }
  _mm_setcsr(before);
}
#endif

TEST_MAIN()
