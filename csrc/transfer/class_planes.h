// The classes of a block's elements as bit planes, and ranks within a class.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transfer/class_rule.h"
#include "transfer/delta.h"
#include "transfer/simd.h"

namespace rose::transfer {

// Elements per group of planes.
inline constexpr std::uint32_t kGroupElements = 64;

// Bit i of plane b is bit b of the class of the i-th element of a group. Missing elements after the
// end of a block have class 0.
struct ClassPlanes {
  std::uint64_t of[3];
};

constexpr std::uint32_t groups_of(std::uint32_t elements) noexcept {
  return (elements + kGroupElements - 1) / kGroupElements;
}

// Number of elements of each class.
using ClassCounts = std::array<std::uint32_t, kClasses>;

// Writes groups_of(elements) planes for `elements` elements. `isa` must be at most best_isa();
// every instruction set gives the same bits.
template <ElementBits T>
void find_planes(Isa isa, const T* bits, std::uint32_t elements, const ClassRule& rule,
                 ClassPlanes* planes) noexcept;

// The number of elements of each class before a group: 16 bits each, four classes per number.
struct GroupStarts {
  std::uint64_t of[2];
};

// The changes of a block, and room for the class of each change and its rank in the class.
struct RankedChanges {
  std::uint32_t changed{0};
  const std::uint16_t* positions{nullptr};
  std::uint8_t* classes{nullptr};
  std::uint16_t* ranks{nullptr};
};

// Writes the class of each change, and its rank: the number of elements of that class before it.
// `starts` has room for groups_of(elements). Returns the number of elements of each class.
ClassCounts find_ranks(Isa isa, const ClassPlanes* planes, std::uint32_t elements,
                       const RankedChanges& changes, GroupStarts* starts) noexcept;

// Returns the number of elements of each class.
ClassCounts count_classes(Isa isa, const ClassPlanes* planes, std::uint32_t elements) noexcept;

// The wanted elements of each class: those of class c are `ranks` from index starts[c] to
// starts[c + 1] - 1. They ascend, and are below the number of elements of the class.
struct WantedRanks {
  const std::uint16_t* ranks{nullptr};
  std::array<std::uint32_t, kClasses + 1> starts{};
};

// Writes the positions of the wanted elements of all classes, ascending, and for each element its
// index in `wanted.ranks`.
void find_positions(Isa isa, const ClassPlanes* planes, std::uint32_t elements,
                    const WantedRanks& wanted, std::uint16_t* positions,
                    std::uint16_t* places) noexcept;

// One version per instruction set; simd.h says why they share no code.
template <ElementBits T>
void find_planes_portable(const T* bits, std::uint32_t elements, const ClassRule& rule,
                          ClassPlanes* planes) noexcept;
#if defined(__x86_64__)
// For whole groups only. 64-byte vectors are no faster: extracting bits is the bottleneck.
// Not a template, which would lose its instruction set where it is instantiated.
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
