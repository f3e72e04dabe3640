#include "transfer/box.h"

#include <functional>

#include "transfer/buffer.h"
#include "transfer/changes.h"

namespace rose::transfer {

bool Shape::append(Dimension inner) noexcept {
  count_ *= inner.size;
  if (inner.size == 1) return true;
  if (used_ != 0) {
    Dimension& outer = dimensions_[used_ - 1];
    if (outer.stride == inner.size * inner.stride) {
      outer = {outer.size * inner.size, inner.stride};
      return true;
    }
  }
  if (used_ == kDimensionsMax) return false;
  dimensions_[used_++] = inner;
  return true;
}

std::uint64_t Shape::extent() const noexcept {
  if (count_ == 0) return 0;
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < used_; ++i) {
    last += (dimensions_[i].size - 1) * dimensions_[i].stride;
  }
  return last + 1;
}

bool Shape::may_overlap_itself() const noexcept {
  if (count_ <= 1) return false;
  auto sorted = dimensions_;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(used_);
  std::sort(sorted.begin(), end,
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  std::uint64_t reach = 1;  // elements covered by the dimensions so far
  for (auto at = sorted.begin(); at != end; ++at) {
    if (at->stride < reach) return true;
    reach += (at->size - 1) * at->stride;
  }
  return false;
}

Shape::Run Shape::run_at(std::uint64_t index) const noexcept {
  if (used_ == 0) return {.size = 1};
  const Dimension& inner = dimensions_[used_ - 1];
  std::uint64_t outer = index / inner.size;
  Run run{.first = outer * inner.size, .size = inner.size, .offset = 0, .stride = inner.stride};
  for (std::size_t i = used_ - 1; i-- > 0;) {
    run.offset += outer % dimensions_[i].size * dimensions_[i].stride;
    outer /= dimensions_[i].size;
  }
  return run;
}

namespace {

// Calls visit(address of an element) for each element, until visit returns false.
template <typename T, typename Visit>
bool each_element(const Box<const T>& box, Visit visit) noexcept {
  BoxCursor<const T> cursor{box};
  for (std::uint64_t first = 0; first < box.count();) {
    const Shape::Run& run = cursor.seek(first);
    for (std::uint64_t i = 0; i < run.size; ++i) {
      if (!visit(box.data + run.offset + i * run.stride)) return false;
    }
    first += run.size;
  }
  return true;
}

}  // namespace

template <typename T>
Result<bool> share_elements(const Box<const T>& one, const Box<const T>& other) noexcept {
  const std::less<const T*> before;
  const T* const end = one.data + one.shape.extent();
  const T* const other_end = other.data + other.shape.extent();
  if (!before(one.data, other_end) || !before(other.data, end)) return false;
  if (one.is_row() && other.is_row()) return true;

  const T* const from = std::max(one.data, other.data, before);
  const T* const to = std::min(end, other_end, before);
  const auto span = static_cast<std::size_t>(to - from);
  auto made = Buffer<std::uint64_t>::create(span / 64 + 1);
  if (!made.ok()) return made.status();
  const auto taken = made.value().span();
  std::ranges::fill(taken, 0U);
  const auto place_of = [&](const T* at) noexcept { return static_cast<std::size_t>(at - from); };
  each_element(one, [&](const T* at) noexcept {
    const std::size_t place = place_of(at);  // wraps around for addresses before `from`
    if (place < span) taken[place / 64] |= std::uint64_t{1} << place % 64;
    return true;
  });
  return !each_element(other, [&](const T* at) noexcept {
    const std::size_t place = place_of(at);
    return place >= span || (taken[place / 64] >> place % 64 & 1) == 0;
  });
}

template Result<bool> share_elements(const Box<const std::uint8_t>&,
                                     const Box<const std::uint8_t>&) noexcept;
template Result<bool> share_elements(const Box<const std::uint16_t>&,
                                     const Box<const std::uint16_t>&) noexcept;
template Result<bool> share_elements(const Box<const std::uint32_t>&,
                                     const Box<const std::uint32_t>&) noexcept;

}  // namespace rose::transfer
