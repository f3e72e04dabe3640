// The classes of all elements of a block as planes of bits, and ranks within a class.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transfer/class_rule.h"
#include "transfer/delta.h"
#include "transfer/simd.h"

namespace rose::transfer {

// Elements of which one group of planes tells the classes.
inline constexpr std::uint32_t kGroupElements = 64;

// Bit i of plane b is bit b of the class of the i-th element of a group. Elements that are not
// there, behind the last one of a block, are of class 0.
struct ClassPlanes {
  std::uint64_t of[3];
};

constexpr std::uint32_t groups_of(std::uint32_t elements) noexcept {
  return (elements + kGroupElements - 1) / kGroupElements;
}

// Elements of each class.
using ClassCounts = std::array<std::uint32_t, kClasses>;

// Writes the planes of `elements` elements: groups_of(elements) of them. `isa` must be at most
// best_isa(); all give the same bits.
template <ElementBits T>
void find_planes(Isa isa, const T* bits, std::uint32_t elements, const ClassRule& rule,
                 ClassPlanes* planes) noexcept;

// How many elements of each class are before a group: 16 bits each, four classes to a number.
struct GroupStarts {
  std::uint64_t of[2];
};

// What a block changes, and room for the class that each has and for its rank in it.
struct RankedChanges {
  std::uint32_t changed{0};
  const std::uint16_t* positions{nullptr};
  std::uint8_t* classes{nullptr};
  std::uint16_t* ranks{nullptr};
};

// Writes, for each change, its class and how many elements of that are before it; `starts` is room
// for groups_of(elements). Returns how many elements each class has.
ClassCounts find_ranks(Isa isa, const ClassPlanes* planes, std::uint32_t elements,
                       const RankedChanges& changes, GroupStarts* starts) noexcept;

// How many elements each class has.
ClassCounts count_classes(Isa isa, const ClassPlanes* planes, std::uint32_t elements) noexcept;

// Which elements of each class are wanted: those of class c are at starts[c] to starts[c + 1] of
// `ranks`, ascend, and are below the number of its elements.
struct WantedRanks {
  const std::uint16_t* ranks{nullptr};
  std::array<std::uint32_t, kClasses + 1> starts{};
};

// Writes the positions of what is wanted, of all classes together and ascending, and beside each
// the place in `ranks` that it comes from.
void find_positions(Isa isa, const ClassPlanes* planes, std::uint32_t elements,
                    const WantedRanks& wanted, std::uint16_t* positions,
                    std::uint16_t* places) noexcept;

// One version each; see simd.h for why they share nothing.
template <ElementBits T>
void find_planes_portable(const T* bits, std::uint32_t elements, const ClassRule& rule,
                          ClassPlanes* planes) noexcept;
#if defined(__x86_64__)
// Of whole groups only. Vectors of 64 bytes are no faster: what bounds it is getting bits out of
// them. Overloads, because a template loses its target on the way through its declaration.
void find_planes_avx2(const std::uint8_t* bits, std::uint32_t groups, const ClassRule& rule,
                      ClassPlanes* planes) noexcept;
void find_planes_avx2(const std::uint16_t* bits, std::uint32_t groups, const ClassRule& rule,
                      ClassPlanes* planes) noexcept;
void find_planes_avx2(const std::uint32_t* bits, std::uint32_t groups, const ClassRule& rule,
                      ClassPlanes* planes) noexcept;
void find_starts_avx512(const ClassPlanes* planes, std::uint32_t groups,
                        GroupStarts* starts) noexcept;
#endif

}  // namespace rose::transfer
