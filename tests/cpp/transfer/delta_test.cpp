// The codec where sanitizers can see it: exact buffers, poisoned buffers, damaged deltas.
#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "transfer/block_writer.h"
#include "transfer/delta_apply.h"
#include "transfer/delta_check.h"
#include "transfer/delta_merge.h"
#include "transfer/delta_pack.h"
#include "transfer/digest.h"
#include "transfer/elias_fano.h"
#include "transfer/pack_tiles.h"
#include "transfer/parallel.h"
#include "transfer/payload_room.h"
#include "transfer/topk.h"
#include "twice_mapped.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace rose;
using namespace rose::transfer;

namespace {

template <typename T>
using Row = std::vector<T>;
using Bits = Row<std::uint16_t>;

template <typename T>
struct Versions {
  Row<T> fresh;
  Row<T> old;
};

// `per_mille` of the elements differ, nine tenths of those by a step of one.
template <typename T = std::uint16_t>
Versions<T> versions(std::size_t count, unsigned per_mille, unsigned seed) {
  std::mt19937 random{seed};
  Versions<T> made;
  for (std::size_t i = 0; i < count; ++i) {
    const auto old = static_cast<T>(random());
    T by = 0;
    if (random() % 1000 < per_mille) {
      const bool is_step = random() % 10 != 0;
      by = is_step ? static_cast<T>(random() % 2 != 0 ? 1 : -1) : static_cast<T>(random() | 2);
    }
    made.old.push_back(old);
    made.fresh.push_back(static_cast<T>(old + by));
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

template <typename T>
Box<const T> read(const Row<T>& row) {
  return row_of(row.data(), row.size());
}
template <typename T>
Box<T> write(Row<T>& row) {
  return row_of(row.data(), row.size());
}

// A delta in vectors of exactly its size, so that a read behind them is detected.
struct OwnDelta {
  std::uint64_t count;
  std::uint32_t block_elements;
  std::uint32_t width;
  std::vector<std::uint64_t> entries;
  std::vector<std::uint32_t> payload;
  Digest base_digest;
  Digest digest;

  DeltaView view() const { return {count, block_elements, width, entries, payload}; }
};

template <typename T>
OwnDelta pack(const Box<const T>& fresh, const Box<T>& shadow, PackOptions options = {}) {
  auto packed = delta_pack(fresh, shadow, options);
  CHECK(packed.ok());
  const auto entries = packed.value().entries.span();
  const auto payload = packed.value().payload.span();
  return {fresh.count(),
          options.block_elements,
          kWidth<T>,
          {entries.begin(), entries.end()},
          {payload.begin(), payload.end()},
          packed.value().base_digest,
          packed.value().digest};
}

template <typename T>
OwnDelta pack(const Row<T>& fresh, Row<T>& shadow, PackOptions options = {}) {
  return pack(read(fresh), write(shadow), options);
}

template <typename T>
Status apply(Row<T>& weights, const OwnDelta& delta, bool is_undone) {
  return delta_apply(write(weights), delta.view(), {.is_undone = is_undone});
}

template <typename Test>
void for_each_width(Test test) {
  test(std::uint8_t{});
  test(std::uint16_t{});
  test(std::uint32_t{});
}

// Every second element of every third row; no other element may be touched.
template <typename T>
struct Holed {
  Row<T> room;
  Box<T> box;

  explicit Holed(const Row<T>& values) : room(6 * values.size() + 1, T{0x55}) {
    const std::uint64_t rows = values.size() % 5 == 0 ? 5 : 1;
    Shape shape;
    CHECK(shape.append({rows, 6 * values.size() / rows}));
    CHECK(shape.append({values.size() / rows, 2}));
    box = {room.data(), shape};
    scatter(values.data(), values.size(), box, 0);
  }
  Row<T> values() const {
    Row<T> out(box.count());
    gather<T>(box, 0, out.size(), out.data());
    return out;
  }
  bool is_clean() {
    const Row<T> clean(box.count(), T{0x55});
    scatter(clean.data(), clean.size(), box, 0);
    return std::ranges::all_of(room, [](T one) { return one == 0x55; });
  }
};

}  // namespace

TEST(every_isa_and_layout_packs_the_same_bits_at_every_size_and_offset) {
  for_each_width([](auto element) {
    using T = decltype(element);
    for (const std::size_t count : {0, 1, 3, 4, 5, 31, 33, 64, 65, 129, 4095, 4097, 16385}) {
      for (const unsigned per_mille : {0U, 10U, 300U, 1000U}) {
        const Versions<T> at_0 = versions<T>(count, per_mille, 7);
        Row<T> shadow = at_0.old;
        const OwnDelta want = pack(at_0.fresh, shadow, {.block_elements = 16384});
        CHECK(shadow == at_0.fresh);
        const auto same = [&](const OwnDelta& made) {
          return made.entries == want.entries && made.payload == want.payload &&
                 made.digest == want.digest && made.base_digest == want.base_digest;
        };
        for (const Isa isa : isas()) {
          const PackOptions options{.block_elements = 16384, .isa = isa, .threads = 2};
          for (const std::size_t offset : {0, 1, 3}) {
            // Buffers that end with the last element.
            Row<T> fresh(offset + count);
            Row<T> moved(offset + count);
            std::ranges::copy(at_0.fresh, fresh.begin() + std::ptrdiff_t(offset));
            std::ranges::copy(at_0.old, moved.begin() + std::ptrdiff_t(offset));
            CHECK(same(pack<T>(row_of<const T>(fresh.data() + offset, count),
                               row_of(moved.data() + offset, count), options)));
            CHECK(std::equal(moved.begin() + std::ptrdiff_t(offset), moved.end(),
                             fresh.begin() + std::ptrdiff_t(offset)));
          }
          if (count == 0) continue;
          const Holed<T> fresh{at_0.fresh};
          Holed<T> holed{at_0.old};
          CHECK(same(pack<T>(fresh.box, holed.box, options)));
          CHECK(holed.values() == at_0.fresh);
          CHECK(holed.is_clean());
        }
      }
    }
  });
}

// `fresh` and `shadow` share pages. Checks that the delta, its digests and the shadow agree.
template <typename T>
void pack_while_it_changes(const Box<const T>& fresh, const Box<T>& shadow,
                           const PackOptions& options) {
  Row<T> old(shadow.count());
  gather<T>(shadow, 0, old.size(), old.data());
  const OwnDelta delta = pack<T>(fresh, shadow, options);
  CHECK(check_delta(delta.view()).ok());
  CHECK(delta.base_digest == digest(read(old), {}).value());
  CHECK(apply(old, delta, false).ok());
  Row<T> held(shadow.count());
  gather<T>(shadow, 0, held.size(), held.data());
  CHECK(old == held);
  CHECK(delta.digest == digest(read(held), {}).value());
}

TEST(weights_that_change_while_they_are_packed_are_read_once) {
  for_each_width([](auto element) {
    using T = decltype(element);
    for (const unsigned per_mille : {1U, 20U, 300U, 1000U}) {
      // Neighbours are equal except at the changes, so all densities occur.
      const Versions<T> made = versions<T>(70001, per_mille, 7);
      Row<T> pages;
      T sum = 1;
      for (std::size_t i = 0; i < made.old.size(); ++i) {
        pages.push_back(sum = static_cast<T>(sum + made.fresh[i] - made.old[i]));
      }
      for (const Isa isa : isas()) {
        for (const std::size_t ahead : {1, 2, 8, 65}) {
          for (const bool is_known : {true, false}) {
            const test::TwiceMapped<T> memory{pages, ahead};
            PackOptions options{.isa = isa};
            if (is_known) options.base_digest = digest<T>(memory.shadow(), {}).value();
            pack_while_it_changes(memory.fresh(), memory.shadow(), options);
            // Every second element: neither box is a row.
            const std::uint64_t half = memory.shadow().count() / 2;
            Shape shape;
            CHECK(shape.append({half, 2}));
            pack_while_it_changes<T>({memory.fresh().data, shape}, {memory.shadow().data, shape},
                                     {.isa = isa});
          }
          if constexpr (std::is_same_v<T, std::uint16_t>) {
            const test::TwiceMapped<T> memory{pages, ahead};
            Row<std::uint8_t> ages(memory.shadow().count(), 1);
            pack_while_it_changes(
                memory.fresh(), memory.shadow(),
                {.threshold = 1 << 7, .ages = {.counts = write(ages), .limit = 2}, .isa = isa});
          }
        }
      }
    }
  });
}

TEST(apply_and_undo_are_exact_and_verified) {
  for_each_width([](auto element) {
    using T = decltype(element);
    for (const std::size_t count : {1, 33, 16385, 70000}) {
      for (const unsigned per_mille : {10U, 500U, 1000U}) {
        const Versions<T> made = versions<T>(count, per_mille, 3);
        Row<T> shadow = made.old;
        const OwnDelta delta = pack(made.fresh, shadow);
        const auto is_verified = [&](const Row<T>& weights, bool is_undone) {
          return delta_verify(read(weights), delta.view(), delta.base_digest, delta.digest,
                              is_undone)
              .ok();
        };
        Row<T> weights = made.old;
        CHECK(is_verified(weights, false));
        CHECK(apply(weights, delta, false).ok());
        CHECK(weights == made.fresh);
        CHECK(is_verified(weights, true));
        CHECK(apply(weights, delta, true).ok());
        CHECK(weights == made.old);
        Holed<T> holed{made.old};
        CHECK(delta_apply(holed.box, delta.view(), {}).ok());
        CHECK(holed.values() == made.fresh);
        CHECK(holed.is_clean());
      }
    }
  });
}

TEST(tiles_are_packed_as_one_by_one_or_not_at_all) {
  std::vector<Versions<std::uint16_t>> made;
  for (const unsigned size : {0U, 5U, 4097U, 70000U}) made.push_back(versions(size, 30, size));
  made[1].fresh = made[1].old;
  for (const std::uint32_t threads : {1U, 3U}) {
    for (const bool is_whole : {true, false}) {
      auto now = made;
      std::vector<TileVersions> tiles;
      for (auto& one : now) {
        const std::size_t left_out = !is_whole && one.old.size() == 70000 ? 1 : 0;
        tiles.push_back(
            {.versions =
                 transfer::Versions<std::uint16_t>{
                     row_of<const std::uint16_t>(one.fresh.data(), one.fresh.size() - left_out),
                     write(one.old)},
             .base_digest = digest(read(one.old), {}).value()});
      }
      auto packed = pack_tiles(tiles, {.threads = threads}, std::nullopt);
      CHECK_EQ(packed.ok(), is_whole);
      for (std::size_t at = 0; at < made.size(); ++at) {
        Bits shadow = made[at].old;
        if (!is_whole) {
          CHECK(now[at].old == shadow);
          continue;
        }
        CHECK(now[at].old == made[at].fresh);
        const auto& tile = packed.value()[at];
        CHECK_EQ(tile.has_value(), made[at].fresh != shadow);
        if (!tile) continue;
        const OwnDelta want = pack(made[at].fresh, shadow);
        CHECK(std::ranges::equal(tile->delta.payload.span(), want.payload));
        CHECK(tile->delta.digest == want.digest);
      }
    }
  }
}

TEST(a_merge_does_what_both_do) {
  for_each_width([](auto element) {
    using T = decltype(element);
    for (const unsigned per_mille : {0U, 30U, 900U}) {
      const Versions<T> one = versions<T>(20000, per_mille, 5);
      const Versions<T> two = versions<T>(20000, 30, 6);
      Row<T> last = one.fresh;
      for (std::size_t i = 0; i < last.size(); ++i) {
        last[i] = static_cast<T>(last[i] + two.fresh[i] - two.old[i]);
      }
      Row<T> shadow = one.old;
      const OwnDelta first = pack(one.fresh, shadow);
      const OwnDelta second = pack(last, shadow);
      Row<T> base = one.old;
      const OwnDelta both = pack(last, base);
      auto merged = delta_merge(first.view(), second.view());
      CHECK(merged.ok());
      CHECK(std::ranges::equal(merged.value().entries.span(), both.entries));
      CHECK(std::ranges::equal(merged.value().payload.span(), both.payload));
    }
  });
}

TEST(a_block_is_written_whole_and_nothing_behind_it) {
  constexpr std::uint32_t kGuard = 0xDEADBEEF;
  for_each_width([](auto element) {
    using T = decltype(element);
    for (const std::size_t count : {1, 10, 33, 1000, 65536}) {
      for (const unsigned per_mille : {5U, 100U, 600U, 1000U}) {
        const Versions<T> made = versions<T>(count, per_mille, 11);
        Bits positions;
        Row<T> differences;
        for (std::size_t i = 0; i < count; ++i) {
          if (made.fresh[i] == made.old[i]) continue;
          positions.push_back(static_cast<std::uint16_t>(i));
          differences.push_back(static_cast<T>(made.fresh[i] - made.old[i]));
        }
        const BlockChanges<T> block{.elements = static_cast<std::uint32_t>(count),
                                    .changed = static_cast<std::uint32_t>(positions.size()),
                                    .positions = positions.data(),
                                    .differences = differences.data()};
        for (const Isa isa : isas()) {
          auto scratch = EncodeScratch::create(count, isa);
          CHECK(scratch.ok());
          std::array<std::vector<std::uint32_t>, 2> out;
          Entry entry;
          // Two poison values: a word that keeps its poison differs between them.
          for (std::size_t i = 0; i < 2; ++i) {
            out[i].assign(raw_words(block.elements, kWidth<T>) + 4, i == 0 ? kGuard : ~kGuard);
            entry = encode_block(block, scratch.value(), out[i].data());
            CHECK(entry.words <= raw_words(block.elements, kWidth<T>));
          }
          CHECK(std::equal(out[0].begin(), out[0].begin() + entry.words, out[1].begin()));
          CHECK(std::all_of(out[0].begin() + entry.words, out[0].end(),
                            [](std::uint32_t word) { return word == kGuard; }));
        }
      }
    }
  });
}

TEST(find_changed_writes_no_further_than_its_slack) {
  for (const Isa isa : isas()) {
    for (const std::size_t count : {1, 31, 32, 63, 64, 65, 200}) {
      for (const unsigned per_mille : {0U, 30U, 1000U}) {
        Versions<std::uint16_t> made = versions(count, per_mille, 5);
        Bits found(count + kFoundSlack);  // ASan guards its end
        const std::size_t changed = find_changed<std::uint16_t>(
            isa, {made.fresh.data(), made.old.data(), made.fresh.data()}, count, 100, found.data());
        std::size_t next = 0;
        for (std::size_t i = 0; i < count; ++i) {
          if (made.fresh[i] != made.old[i]) CHECK_EQ(found[next++], 100 + i);
        }
        CHECK_EQ(changed, next);
      }
    }
  }
}

TEST(every_isa_lists_the_same_changes_and_no_further_than_the_slack) {
  for_each_width([](auto element) {
    using T = decltype(element);
    std::mt19937 random{9};
    for (const std::uint32_t count : {1U, 31U, 63U, 64U, 65U, 200U, 3000U}) {
      for (const unsigned listed_of_8 : {0U, 1U, 8U}) {
        Row<T> differences(count);  // exact, so that a read behind it is detected
        Bits wanted;
        for (std::uint32_t i = 0; i < count; ++i) {
          const bool is_listed = random() % 8 < listed_of_8;
          differences[i] = is_listed ? static_cast<T>(2 + random() % 253) : T{1};
          if (random() % 2 != 0) differences[i] = static_cast<T>(T{0} - differences[i]);
          if (size_of(differences[i]) != 1) wanted.push_back(static_cast<std::uint16_t>(i));
        }
        for (const Isa isa : isas()) {
          Bits ranks(count + kFoundSlack);
          ranks.resize(find_listed(isa, differences.data(), count, ranks.data()));
          CHECK(ranks == wanted);
        }
      }
    }
  });
}

TEST(changes_are_taken_alike_also_where_some_share_a_word) {
  for_each_width([](auto element) {
    using T = decltype(element);
    constexpr std::uint64_t kFirstWord = 5;
    constexpr std::uint32_t kBase = 4096;
    for (const std::size_t count : {8, 64, 512}) {
      for (const unsigned per_mille : {5U, 100U, 1000U}) {
        const Versions<T> made = versions<T>(count, per_mille, 13);
        Bits positions;
        Row<T> differences;
        for (std::size_t i = 0; i < count; ++i) {
          if (made.fresh[i] == made.old[i]) continue;
          positions.push_back(static_cast<std::uint16_t>(kBase + i));
          differences.push_back(static_cast<T>(made.fresh[i] - made.old[i]));
        }
        Digest before;
        Digest after;
        add_elements(Isa::kPortable, made.old.data(), count, kFirstWord, 0, before);
        add_elements(Isa::kPortable, made.fresh.data(), count, kFirstWord, 0, after);
        for (const Isa isa : isas()) {
          Row<T> shadow = made.old;
          Row<T> noted(positions.size() + kChangesSlack);
          Digest moved = before;
          take_changes<T>(isa,
                          {.fresh = made.fresh.data(),
                           .shadow = shadow.data(),
                           .positions = positions.data(),
                           .base = kBase,
                           .count = static_cast<std::uint32_t>(positions.size()),
                           .differences = noted.data()},
                          kFirstWord, moved);
          noted.resize(positions.size());
          CHECK(noted == differences);
          CHECK(shadow == made.fresh);
          CHECK(moved == after);
        }
      }
    }
  });
}

// Applies a damaged delta: it must be refused and change nothing, or be undone exactly.
template <typename T>
void try_damaged(const OwnDelta& damaged, const Row<T>& base) {
  Row<T> weights = base;
  const Status status = apply(weights, damaged, false);
  if (!status.ok()) {
    CHECK_EQ(status.code(), Code::kCorrupt);
    CHECK(weights == base);
    CHECK(!topk_unpack(damaged.view(), read(base)).ok());
    CHECK(!delta_merge(damaged.view(), damaged.view()).ok());
    return;
  }
  auto unpacked = topk_unpack(damaged.view(), read(base));
  CHECK(unpacked.ok());
  for (std::size_t i = 0; i < unpacked.value().positions.size(); ++i) {
    const auto position = static_cast<std::size_t>(unpacked.value().positions[i]);
    CHECK_EQ(weights[position], unpacked.value().values[i]);
  }
  CHECK(delta_merge(damaged.view(), damaged.view()).ok());
  CHECK(apply(weights, damaged, true).ok());
  CHECK(weights == base);
}

TEST(every_flipped_bit_is_refused_or_harmless) {
  for_each_width([](auto element) {
    using T = decltype(element);
    for (const std::size_t count : {1, 2, 33, 300}) {
      for (const unsigned per_mille : {20U, 200U, 900U}) {
        const Versions<T> made = versions<T>(count, per_mille, 21);
        Row<T> shadow = made.old;
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
  });
}

TEST(cut_extended_and_shuffled_deltas_are_refused_or_harmless) {
  const Versions<std::uint16_t> made = versions(3 * 16384 + 77, 8, 23);
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
  for_each_width([](auto element) {
    using T = decltype(element);
    std::mt19937 random{31};
    const Row<T> base = versions<T>(200, 0, 1).old;
    int taken = 0;
    for (int i = 0; i < 20'000; ++i) {
      const std::uint32_t changed = 1 + static_cast<std::uint32_t>(random()) % 12;
      const std::uint32_t listed = static_cast<std::uint32_t>(random()) % (changed + 1);
      const Kind kind = random() % 2 == 0 ? Kind::kGap : Kind::kBitmap;
      const std::uint32_t before = position_words(kind, 200, changed) + words_of_bits(changed);
      const std::uint32_t bits = static_cast<std::uint32_t>(random()) % kWidth<T>;
      const std::uint32_t large = listed == 0 ? 0 : static_cast<std::uint32_t>(random()) % 2;
      const std::uint32_t rest = listed == 0 ? 0
                                             : 1 + rank_words(changed, listed) +
                                                   magnitude_words(listed, large, bits, kWidth<T>);
      const Entry entry{.kind = kind, .changed = changed, .listed = listed, .words = before + rest};
      OwnDelta made{200, kBlockElementsMax, kWidth<T>, {entry.encode()}, {}, {}, {}};
      // Few bits, so that the number of positions is sometimes valid.
      for (std::uint32_t w = 0; w < entry.words; ++w) {
        made.payload.push_back(static_cast<std::uint32_t>(random() & random() & random()));
      }
      if (rest != 0) made.payload[before] = bits | large << 8;
      taken += check_delta(made.view()).ok() ? 1 : 0;
      try_damaged(made, base);
    }
    CHECK(taken < 20'000);
  });
}

// Bit by bit, as in docs/protocol.md.
std::vector<std::uint32_t> plain_elias_fano(const Bits& positions, std::uint32_t universe) {
  const EliasFanoShape shape{universe, static_cast<std::uint32_t>(positions.size())};
  std::vector<std::uint32_t> words(shape.words());
  const auto set = [&](std::size_t bit) { words[bit / 32] |= 1U << bit % 32; };
  for (std::size_t i = 0; i < positions.size(); ++i) {
    set((positions[i] >> shape.low_bits) + i);
    for (std::uint32_t bit = 0; bit < shape.low_bits; ++bit) {
      if ((positions[i] >> bit & 1) != 0) set(32 * shape.high_words + i * shape.low_bits + bit);
    }
  }
  return words;
}

// Writes ascending positions with every implementation: each gives the bits of the plain one, and
// none behind.
void check_elias_fano(const Bits& positions, std::uint32_t universe) {
  constexpr std::uint32_t kUntouched = 0xA5A5'A5A5;
  const auto count = static_cast<std::uint32_t>(positions.size());
  std::vector<std::uint32_t> expected = plain_elias_fano(positions, universe);
  EliasFanoReader reader{expected.data(), universe, count};
  for (const std::uint16_t position : positions) CHECK_EQ(reader.next(), position);
  const std::size_t words = expected.size();
  expected.resize(words + 4, kUntouched);
  for (const Isa isa : isas()) {
    std::vector<std::uint32_t> written(words + 4, kUntouched);
    CHECK(write_elias_fano(isa, positions.data(), count, universe, written.data()) ==
          written.data() + words);
    CHECK(written == expected);
  }
}

TEST(elias_fano_goes_there_and_back) {
  std::mt19937 random{37};
  for (const std::uint32_t universe : {1U, 2U, 31U, 1000U, 16384U, 65536U}) {
    for (const std::uint32_t wanted : {1U, 2U, 30U, 99U, universe / 100, universe / 17,
                                       universe / 5, universe / 2, universe - 1, universe}) {
      const std::uint32_t count = std::clamp(wanted, 1U, universe);
      Bits all(universe);
      for (std::uint32_t i = 0; i < universe; ++i) all[i] = static_cast<std::uint16_t>(i);
      Bits positions;
      std::ranges::sample(all, std::back_inserter(positions), count, random);
      check_elias_fano(positions, universe);
    }
  }
}

TEST(elias_fano_bridges_holes_of_any_size) {
  std::mt19937 random{41};
  for (int round = 0; round < 300; ++round) {
    // In clusters, so that some positions are adjacent and others are words apart.
    std::set<std::uint16_t> chosen;
    for (auto heaps = random() % 9 + 1; heaps > 0; --heaps) {
      const auto first = random() % 65536;
      for (auto size = random() % 200 + 1; size > 0; --size) {
        chosen.insert(static_cast<std::uint16_t>((first + random() % 300) % 65536));
      }
    }
    check_elias_fano(Bits(chosen.begin(), chosen.end()), 65536);
  }
}

TEST(payload_of_parts_is_what_they_wrote_wherever_they_had_to_go) {
  constexpr std::uint32_t kBlockWords = 65'536;
  for (const std::uint32_t filled : {0U, 1U, 700U, kBlockWords}) {
    for (const std::uint32_t parts : {1U, 2U, 3U}) {
      for (const std::uint64_t blocks : {3U, 17U, 65U}) {
        const std::uint64_t words_max = blocks * kBlockWords - 9;
        auto room = PayloadRoom::create(blocks, kBlockWords, words_max, parts);
        CHECK(room.ok());
        std::vector<std::uint32_t> expected;
        for (std::uint32_t part = 0; part < parts; ++part) {
          for (auto block = part_border(blocks, part, parts);
               block < part_border(blocks, part + 1, parts); ++block) {
            // Memory is requested for a whole block, of which not all is used; the last block is
            // shorter.
            const std::uint32_t most = block + 1 == blocks ? kBlockWords - 9 : kBlockWords;
            std::uint32_t* const out = room.value().part(part).room(most);
            const std::uint32_t words = std::min(filled, most);
            for (std::uint32_t i = 0; i < words; ++i) {
              out[i] = static_cast<std::uint32_t>(expected.size());
              expected.push_back(out[i]);
            }
            room.value().part(part).add(words);
          }
        }
        const Buffer<std::uint32_t> joined = room.value().join();
        CHECK(std::ranges::equal(joined.span(), expected));
      }
    }
  }
}

TEST(no_block_needs_more_words_than_its_entry_can_say) {
  constexpr std::uint32_t kFieldMax = (1U << 20) - 1;
  static_assert(raw_words(kBlockElementsMax, 32) <= kFieldMax && kBlockElementsMax <= kFieldMax);
  const Entry entry{
      .kind = Kind::kRaw, .changed = kFieldMax, .listed = kFieldMax, .words = kFieldMax};
  const Entry again = Entry::decode(entry.encode());
  CHECK_EQ(again.changed, kFieldMax);
  CHECK_EQ(again.listed, kFieldMax);
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
    auto whole = digest(read(bits), {.first_index = first, .seed = 9});
    auto low = digest(row_of(bits.data(), 4), {.first_index = first, .seed = 9});
    auto high = digest(row_of(bits.data() + 4, 4), {.first_index = first + 4, .seed = 9});
    CHECK_EQ(whole.value().first, low.value().first + high.value().first);
    CHECK_EQ(whole.value().second, low.value().second + high.value().second);
  }
}

TEST(what_cannot_be_packed_is_refused_and_changes_nothing) {
  Bits memory(64, 5);
  const auto part = [&](std::size_t first, std::size_t count) {
    return row_of(memory.data() + first, count);
  };
  const auto code = [](const Box<std::uint16_t>& fresh, const Box<std::uint16_t>& shadow,
                       const PackOptions& options) {
    return delta_pack<std::uint16_t>(fresh, shadow, options).status().code();
  };
  CHECK_EQ(code(part(0, 8), part(7, 8), {}), Code::kInvalidArgument);
  CHECK_EQ(code(part(0, 8), part(8, 7), {}), Code::kInvalidArgument);
  CHECK_EQ(code(part(0, 8), part(8, 8), {.block_elements = 100}), Code::kInvalidArgument);
  CHECK_EQ(code(part(0, 8), part(8, 8), {.threshold = 32769}), Code::kInvalidArgument);
  CHECK_EQ(code(part(0, 8), part(8, 8), {.threshold = 32768}), Code::kOk);
  CHECK_EQ(digest<std::uint16_t>(part(0, 8), {.first_index = 6}).status().code(),
           Code::kInvalidArgument);
  CHECK(memory == Bits(64, 5));
}

TEST(boxes_of_one_storage_are_refused_where_they_share_an_element) {
  Bits memory(64, 5);
  const auto every_third = [&](std::size_t first, std::uint64_t count) {
    Shape shape;
    CHECK(shape.append({count, 3}));
    return Box<const std::uint16_t>{memory.data() + first, shape};
  };
  const auto share = [](const Box<const std::uint16_t>& one,
                        const Box<const std::uint16_t>& other) {
    return share_elements(one, other).value();
  };
  CHECK(!share(every_third(0, 20), every_third(1, 20)));
  CHECK(share(every_third(0, 20), every_third(57, 2)));
  CHECK(!share(every_third(0, 19), every_third(57, 2)));
  CHECK(share(every_third(1, 20), row_of<const std::uint16_t>(memory.data() + 57, 2)));
  CHECK(!share(every_third(1, 20), row_of<const std::uint16_t>(memory.data() + 56, 2)));
  Shape expanded;
  CHECK(expanded.append({4, 0}));
  CHECK(expanded.may_overlap_itself());
  Shape crossed;
  CHECK(crossed.append({4, 3}) && crossed.append({4, 1}));
  CHECK(crossed.may_overlap_itself());
  Shape rows;
  CHECK(rows.append({4, 5}) && rows.append({5, 1}));
  CHECK(rows.is_row() && !rows.may_overlap_itself());
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
  CHECK_EQ(key(0x7F81, 0x0000), kKeyNan);  // a NaN in either
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
