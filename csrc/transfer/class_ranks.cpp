// Ranks within a class, from the planes and the count of every class before each group of 64
// elements.
#include <bit>
#include <utility>

#include "transfer/class_planes.h"

namespace rose::transfer {

namespace {

// Machines that run the vector versions have an instruction that counts bits, but the base build
// must not use it. So each of these loops is inlined into two functions: one is compiled with that
// instruction, the other without.
#define ROSE_INLINED __attribute__((always_inline)) inline

constexpr std::uint32_t kNone = 0xFFFF'FFFF;

using Masks = std::array<std::uint64_t, kClasses>;

// The mask of each class's lanes in a group.
ROSE_INLINED Masks masks_of(const ClassPlanes& group) noexcept {
  const auto [zero, one, two] = group.of;
  const std::uint64_t none = ~(zero | one);
  const std::uint64_t only_zero = zero & ~one;
  const std::uint64_t only_one = one & ~zero;
  const std::uint64_t both = zero & one;
  return {none & ~two, only_zero & ~two, only_one & ~two, both & ~two,
          none & two,  only_zero & two,  only_one & two,  both & two};
}

ROSE_INLINED std::uint32_t count_of(std::uint64_t mask) noexcept {
  return static_cast<std::uint32_t>(std::popcount(mask));
}

// The counts of four classes from `first` on, 16 bits each.
ROSE_INLINED std::uint64_t packed_counts(const Masks& masks, std::uint32_t first) noexcept {
  return std::uint64_t{count_of(masks[first])} | std::uint64_t{count_of(masks[first + 1])} << 16 |
         std::uint64_t{count_of(masks[first + 2])} << 32 |
         std::uint64_t{count_of(masks[first + 3])} << 48;
}

ROSE_INLINED std::uint32_t count_at(const GroupStarts& starts, std::uint32_t c) noexcept {
  return static_cast<std::uint16_t>(starts.of[c / 4] >> (c % 4 * 16));
}

ROSE_INLINED void add_group(const Masks& masks, ClassCounts& counts) noexcept {
  for (std::uint32_t c = 0; c < kClasses; ++c) counts[c] += count_of(masks[c]);
}

// The lane of the set bit that has `rank` set bits below it.
ROSE_INLINED std::uint32_t lane_of(std::uint64_t mask, std::uint32_t rank) noexcept {
  std::uint32_t lane = 0;
  for (std::uint32_t half = 32; half != 0; half /= 2) {
    const std::uint64_t low = mask >> lane & ((std::uint64_t{1} << half) - 1);
    const std::uint32_t below = count_of(low);
    const bool is_above = rank >= below;
    rank -= is_above ? below : 0;
    lane += is_above ? half : 0;
  }
  return lane;
}

// Lanes behind the last element were counted as class 0.
ROSE_INLINED ClassCounts without_padding(ClassCounts counts, std::uint32_t elements) noexcept {
  counts[0] -= groups_of(elements) * kGroupElements - elements;
  return counts;
}

struct RankQuestion {
  const ClassPlanes* planes;
  std::uint32_t elements;
  const RankedChanges& changes;
  const GroupStarts* starts;
};

// The class of an element, and the lanes of its group that have another class.
struct LaneClass {
  std::uint32_t of{0};
  std::uint64_t others{0};  // mask of the lanes of other classes
};

ROSE_INLINED LaneClass class_in(const ClassPlanes& group, std::uint32_t lane) noexcept {
  LaneClass found;
  for (std::uint32_t plane = 0; plane < 3; ++plane) {
    const std::uint64_t bit = group.of[plane] >> lane & 1;
    found.of |= static_cast<std::uint32_t>(bit) << plane;
    found.others |= group.of[plane] ^ (std::uint64_t{0} - bit);
  }
  return found;
}

// The count of each class before every group, four counts per number.
ROSE_INLINED void starts_loop(const ClassPlanes* planes, std::uint32_t groups,
                              GroupStarts* starts) noexcept {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  for (std::uint32_t group = 0; group < groups; ++group) {
    starts[group] = {low, high};
    const Masks masks = masks_of(planes[group]);
    low += packed_counts(masks, 0);
    high += packed_counts(masks, 4);
  }
}

// asked.starts has the counts before each group, so each change is processed independently, without
// branches.
ROSE_INLINED ClassCounts ranks_loop(const RankQuestion& asked) noexcept {
  ClassCounts counts{};
  const std::uint32_t groups = groups_of(asked.elements);
  if (groups != 0) {
    // Before the last group every count fits 16 bits; after it, a count may be 65,536.
    for (std::uint32_t c = 0; c < kClasses; ++c) counts[c] = count_at(asked.starts[groups - 1], c);
    add_group(masks_of(asked.planes[groups - 1]), counts);
  }
  // Local copies: for the compiler, a stored byte may change anything, including the pointers.
  const RankedChanges changes = asked.changes;
  const ClassPlanes* const planes = asked.planes;
  const GroupStarts* const starts = asked.starts;
  for (std::uint32_t i = 0; i < changes.changed; ++i) {
    const std::uint32_t position = changes.positions[i];
    const std::uint32_t group = position / kGroupElements;
    const LaneClass found = class_in(planes[group], position % kGroupElements);
    // The shift drops the lanes above the element, and keeps its own lane.
    const std::uint32_t in_group = count_of(~found.others << (~position % kGroupElements)) - 1;
    changes.classes[i] = static_cast<std::uint8_t>(found.of);
    changes.ranks[i] = static_cast<std::uint16_t>(count_at(starts[group], found.of) + in_group);
  }
  return without_padding(counts, asked.elements);
}

ROSE_INLINED ClassCounts counts_loop(const ClassPlanes* planes, std::uint32_t elements) noexcept {
  ClassCounts counts{};
  for (std::uint32_t group = 0; group < groups_of(elements); ++group) {
    add_group(masks_of(planes[group]), counts);
  }
  return without_padding(counts, elements);
}

// Takes the wanted ranks of each class, in order.
struct Wants {
  const WantedRanks& wanted;
  std::array<std::uint32_t, kClasses> next{};  // index of the next wanted rank of each class
  ClassCounts rank{};                          // that rank, or kNone

  explicit Wants(const WantedRanks& all) noexcept : wanted{all} {
    for (std::uint32_t c = 0; c < kClasses; ++c) {
      next[c] = wanted.starts[c];
      look(c);
    }
  }
  ROSE_INLINED void look(std::uint32_t c) noexcept {
    rank[c] = next[c] < wanted.starts[c + 1] ? wanted.ranks[next[c]] : kNone;
  }
  ROSE_INLINED std::uint32_t take(std::uint32_t c) noexcept {
    const std::uint32_t place = next[c]++;
    look(c);
    return place;
  }
};

struct PositionQuestion {
  const ClassPlanes* planes;
  std::uint32_t elements;
  std::uint16_t* positions;
  std::uint16_t* places;
};

ROSE_INLINED void positions_loop(const PositionQuestion& asked, const WantedRanks& all) noexcept {
  Wants wants{all};
  ClassCounts counts{};
  std::uint16_t* position = asked.positions;
  std::uint16_t* place = asked.places;
  std::array<std::uint16_t, kGroupElements> place_of_lane;
  for (std::uint32_t group = 0; group < groups_of(asked.elements); ++group) {
    const Masks masks = masks_of(asked.planes[group]);
    const ClassCounts before = counts;
    add_group(masks, counts);
    std::uint32_t is_wanted = 0;
    for (std::uint32_t c = 0; c < kClasses; ++c) is_wanted |= wants.rank[c] < counts[c] ? 1U : 0U;
    if (is_wanted == 0) continue;  // about half of the groups if 1 % of the elements changed
    std::uint64_t hits = 0;
    for (std::uint32_t c = 0; c < kClasses; ++c) {
      while (wants.rank[c] < counts[c]) {
        const std::uint32_t lane = lane_of(masks[c], wants.rank[c] - before[c]);
        place_of_lane[lane] = static_cast<std::uint16_t>(wants.take(c));
        hits |= std::uint64_t{1} << lane;
      }
    }
    for (; hits != 0; hits &= hits - 1) {
      const auto lane = static_cast<std::uint32_t>(std::countr_zero(hits));
      *position++ = static_cast<std::uint16_t>(group * kGroupElements + lane);
      *place++ = place_of_lane[lane];
    }
  }
}

#if defined(__x86_64__)
#define ROSE_POPCNT __attribute__((target("popcnt")))

ROSE_POPCNT void starts_popcnt(const ClassPlanes* planes, std::uint32_t groups,
                               GroupStarts* starts) noexcept {
  starts_loop(planes, groups, starts);
}
// With BMI2, because its shifts do not change the flags, and take their count from any register.
__attribute__((target("popcnt,bmi2"))) ClassCounts
ranks_popcnt(const RankQuestion& asked) noexcept {
  return ranks_loop(asked);
}
ROSE_POPCNT ClassCounts counts_popcnt(const ClassPlanes* planes, std::uint32_t elements) noexcept {
  return counts_loop(planes, elements);
}
ROSE_POPCNT void positions_popcnt(const PositionQuestion& asked, const WantedRanks& all) noexcept {
  positions_loop(asked, all);
}
#endif

}  // namespace

ClassCounts find_ranks(Isa isa, const ClassPlanes* planes, std::uint32_t elements,
                       const RankedChanges& changes, GroupStarts* starts) noexcept {
  const RankQuestion asked{planes, elements, changes, starts};
  const std::uint32_t groups = groups_of(elements);
#if defined(__x86_64__)
  if (isa != Isa::kPortable) {
    (isa == Isa::kAvx512 ? find_starts_avx512 : starts_popcnt)(planes, groups, starts);
    return ranks_popcnt(asked);
  }
#endif
  static_cast<void>(isa);
  starts_loop(planes, groups, starts);
  return ranks_loop(asked);
}

ClassCounts count_classes(Isa isa, const ClassPlanes* planes, std::uint32_t elements) noexcept {
#if defined(__x86_64__)
  if (isa != Isa::kPortable) return counts_popcnt(planes, elements);
#endif
  static_cast<void>(isa);
  return counts_loop(planes, elements);
}

void find_positions(Isa isa, const ClassPlanes* planes, std::uint32_t elements,
                    const WantedRanks& wanted, std::uint16_t* positions,
                    std::uint16_t* places) noexcept {
  const PositionQuestion asked{planes, elements, positions, places};
#if defined(__x86_64__)
  if (isa != Isa::kPortable) return positions_popcnt(asked, wanted);
#endif
  static_cast<void>(isa);
  positions_loop(asked, wanted);
}

#undef ROSE_INLINED
#undef ROSE_POPCNT

}  // namespace rose::transfer
