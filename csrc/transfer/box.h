// Elements in memory: a row, or a box of a larger tensor, in the box's row-major order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/status.h"

namespace rose::transfer {

// A dimension, with its stride in elements.
struct Dimension {
  std::uint64_t size{0};
  std::uint64_t stride{0};
};

// The dimensions of a box. Adjacent dimensions that are contiguous in memory are joined.
class Shape {
 public:
  static constexpr std::size_t kDimensionsMax = 16;

  Shape() noexcept = default;
  explicit Shape(std::uint64_t count) noexcept : count_{count}, used_{1} {
    dimensions_[0] = {count, 1};
  }
  // Appends an inner dimension. False if more than kDimensionsMax dimensions remain after joining.
  bool append(Dimension inner) noexcept;

  std::uint64_t count() const noexcept { return count_; }
  bool is_row() const noexcept { return count_ <= 1 || (used_ == 1 && dimensions_[0].stride == 1); }
  // Distance in memory from the first element to the end of the last, in elements.
  std::uint64_t extent() const noexcept;
  // True if two elements may share memory; also true for some boxes without overlap.
  bool may_overlap_itself() const noexcept;

  // Elements with consecutive indices that lie `stride` elements apart in memory.
  struct Run {
    std::uint64_t first{0};  // index of its first element in the box
    std::uint64_t size{0};
    std::uint64_t offset{0};  // from the start of the box to that element, in elements
    std::uint64_t stride{1};
  };
  // The run that holds element `index` < count().
  Run run_at(std::uint64_t index) const noexcept;

 private:
  std::uint64_t count_{1};
  std::size_t used_{0};
  std::array<Dimension, kDimensionsMax> dimensions_{};
};

// Borrowed elements. T is const if they are read-only.
template <typename T>
struct Box {
  T* data{nullptr};
  Shape shape{0};

  std::uint64_t count() const noexcept { return shape.count(); }
  bool is_row() const noexcept { return shape.is_row(); }
  operator Box<const T>() const noexcept
    requires(!std::is_const_v<T>)
  {
    return {data, shape};
  }
};

template <typename T>
Box<T> row_of(T* data, std::uint64_t count) noexcept {
  return {data, Shape{count}};
}

// Finds elements by index; fast while the indices stay in one run.
template <typename T>
class BoxCursor {
 public:
  explicit BoxCursor(const Box<T>& box) noexcept : box_{&box} {}

  T& at(std::uint64_t index) noexcept {
    seek(index);
    return box_->data[run_.offset + (index - run_.first) * run_.stride];
  }
  // Makes `index` part of the current run.
  const Shape::Run& seek(std::uint64_t index) noexcept {
    if (index - run_.first >= run_.size) run_ = box_->shape.run_at(index);
    return run_;
  }

 private:
  const Box<T>* box_;
  Shape::Run run_;
};

// Copies `count` elements of the box, from index `first` on, to `out`.
template <typename T>
void gather(const Box<const T>& box, std::uint64_t first, std::size_t count, T* out) noexcept {
  BoxCursor<const T> cursor{box};
  while (count != 0) {
    const Shape::Run& run = cursor.seek(first);
    const auto taken =
        static_cast<std::size_t>(std::min<std::uint64_t>(count, run.first + run.size - first));
    const T* const from = box.data + run.offset + (first - run.first) * run.stride;
    for (std::size_t i = 0; i < taken; ++i) out[i] = from[i * run.stride];
    out += taken;
    first += taken;
    count -= taken;
  }
}

// Copies `count` elements to the box, from index `first` on.
template <typename T>
void scatter(const T* from, std::size_t count, const Box<T>& box, std::uint64_t first) noexcept {
  BoxCursor<T> cursor{box};
  while (count != 0) {
    const Shape::Run& run = cursor.seek(first);
    const auto given =
        static_cast<std::size_t>(std::min<std::uint64_t>(count, run.first + run.size - first));
    T* const to = box.data + run.offset + (first - run.first) * run.stride;
    for (std::size_t i = 0; i < given; ++i) to[i * run.stride] = from[i];
    from += given;
    first += given;
    count -= given;
  }
}

// Returns `count` elements from index `first` on: in place if the box is a row, otherwise copied to
// `room`.
template <typename T>
const T* in_a_row(const Box<const T>& box, std::uint64_t first, std::size_t count,
                  T* room) noexcept {
  if (box.is_row()) return box.data + first;
  gather(box, first, count, room);
  return room;
}

// True if, and only if, the boxes share an element. The check needs one bit per element of the
// address range that both boxes cover; OutOfMemory if it cannot be allocated.
template <typename T>
Result<bool> share_elements(const Box<const T>& one, const Box<const T>& other) noexcept;

}  // namespace rose::transfer
