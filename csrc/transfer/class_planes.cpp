#include "transfer/class_planes.h"

namespace rose::transfer {

template <ElementBits T>
void find_planes_portable(const T* bits, std::uint32_t elements, const ClassRule& rule,
                          ClassPlanes* planes) noexcept {
  for (std::uint32_t first = 0; first < elements; first += kGroupElements) {
    ClassPlanes group{};
    const std::uint32_t count = std::min(kGroupElements, elements - first);
    for (std::uint32_t lane = 0; lane < count; ++lane) {
      const std::uint64_t found = rule.class_of(bits[first + lane]);
      for (std::uint32_t plane = 0; plane < 3; ++plane) {
        group.of[plane] |= (found >> plane & 1) << lane;
      }
    }
    *planes++ = group;
  }
}

template <ElementBits T>
void find_planes(Isa isa, const T* bits, std::uint32_t elements, const ClassRule& rule,
                 ClassPlanes* planes) noexcept {
  std::uint32_t whole = 0;
#if defined(__x86_64__)
  if (isa != Isa::kPortable) {
    whole = elements / kGroupElements;
    find_planes_avx2(bits, whole, rule, planes);
  }
#else
  static_cast<void>(isa);
#endif
  const std::uint32_t done = whole * kGroupElements;
  find_planes_portable(bits + done, elements - done, rule, planes + whole);
}

template void find_planes(Isa, const std::uint8_t*, std::uint32_t, const ClassRule&,
                          ClassPlanes*) noexcept;
template void find_planes(Isa, const std::uint16_t*, std::uint32_t, const ClassRule&,
                          ClassPlanes*) noexcept;
template void find_planes(Isa, const std::uint32_t*, std::uint32_t, const ClassRule&,
                          ClassPlanes*) noexcept;

}  // namespace rose::transfer
