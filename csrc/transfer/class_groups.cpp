#include "transfer/class_groups.h"

namespace rose::transfer {

template <ElementBits T>
ClassCounts group_by_class(Isa isa, const ClassGroups<T>& changes) noexcept {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return group_by_class_avx512(changes);
#else
  static_cast<void>(isa);
#endif
  ClassCounts counts{};
  for (std::uint32_t i = 0; i < changes.changed; ++i) ++counts[changes.classes[i]];
  ClassCounts next{};
  for (std::uint32_t c = 1; c < kClasses; ++c) next[c] = next[c - 1] + counts[c - 1];
  for (std::uint32_t i = 0; i < changes.changed; ++i) {
    const std::uint32_t place = next[changes.classes[i]]++;
    changes.grouped_ranks[place] = changes.ranks[i];
    changes.grouped_differences[place] = changes.differences[i];
  }
  return counts;
}

template ClassCounts group_by_class(Isa, const ClassGroups<std::uint8_t>&) noexcept;
template ClassCounts group_by_class(Isa, const ClassGroups<std::uint16_t>&) noexcept;
template ClassCounts group_by_class(Isa, const ClassGroups<std::uint32_t>&) noexcept;

}  // namespace rose::transfer
