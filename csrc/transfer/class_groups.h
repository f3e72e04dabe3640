// Groups the changes of each class.
#pragma once

#include <cstdint>

#include "transfer/changes.h"
#include "transfer/class_planes.h"
#include "transfer/simd.h"

namespace rose::transfer {

// The changes of a block in the order of positions, and the output: their ranks and differences
// grouped by class, each with room for `changed` + kChangesSlack values.
template <ElementBits T>
struct ClassGroups {
  std::uint32_t changed{0};
  const std::uint8_t* classes{nullptr};
  const std::uint16_t* ranks{nullptr};
  const T* differences{nullptr};
  std::uint16_t* grouped_ranks{nullptr};
  T* grouped_differences{nullptr};
};

// Groups changes by class, and keeps their order within a class. Returns the number of changes of
// each class. `isa` must be at most best_isa(); every instruction set gives the same result.
template <ElementBits T>
ClassCounts group_by_class(Isa isa, const ClassGroups<T>& changes) noexcept;

#if defined(__x86_64__)
// Not a template, which would lose its instruction set where it is instantiated.
ClassCounts group_by_class_avx512(const ClassGroups<std::uint8_t>& changes) noexcept;
ClassCounts group_by_class_avx512(const ClassGroups<std::uint16_t>& changes) noexcept;
ClassCounts group_by_class_avx512(const ClassGroups<std::uint32_t>& changes) noexcept;
#endif

}  // namespace rose::transfer
