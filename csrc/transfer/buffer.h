// Uninitialised memory for numbers. A failed allocation is a Status.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "base/status.h"

namespace rose::transfer {

// Owns `size()` numbers. Pages that are never written use only address space, so allocating the
// worst case and shrinking later is cheap.
template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static Result<Buffer> create(std::size_t size) noexcept {
    if (size == 0) return Buffer{};
    const bool fits = size <= std::numeric_limits<std::ptrdiff_t>::max() / sizeof(T);
    auto* const numbers = fits ? static_cast<T*>(std::malloc(size * sizeof(T))) : nullptr;
    if (numbers == nullptr) {
      return Status::out_of_memory("no memory for " + std::to_string(size) + " numbers of " +
                                   std::to_string(sizeof(T)) + " bytes");
    }
    return Buffer{numbers, size};
  }

  Buffer() noexcept = default;
  Buffer(Buffer&& other) noexcept
      : numbers_{std::move(other.numbers_)}, size_{std::exchange(other.size_, 0)} {}
  Buffer& operator=(Buffer&& other) noexcept {
    numbers_ = std::move(other.numbers_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  T* data() const noexcept { return numbers_.get(); }
  std::size_t size() const noexcept { return size_; }
  std::span<T> span() const noexcept { return {data(), size_}; }
  T& operator[](std::size_t index) const noexcept { return numbers_.get()[index]; }

  // Keeps the first `size` <= size() numbers, and frees the memory behind them.
  void shrink(std::size_t size) noexcept {
    size_ = size;
    if (size == 0) {
      numbers_.reset();
    } else if (void* const moved = std::realloc(numbers_.get(), size * sizeof(T))) {
      static_cast<void>(numbers_.release());
      numbers_.reset(static_cast<T*>(moved));
    }
  }

 private:
  struct Free {
    void operator()(T* numbers) const noexcept { std::free(numbers); }
  };
  Buffer(T* numbers, std::size_t size) noexcept : numbers_{numbers}, size_{size} {}

  std::unique_ptr<T, Free> numbers_;
  std::size_t size_{0};
};

// Replaces `room` with a buffer of `size` numbers.
template <typename T>
Status give_room(Buffer<T>& room, std::size_t size) noexcept {
  auto made = Buffer<T>::create(size);
  if (!made.ok()) return made.status();
  room = made.take();
  return {};
}

}  // namespace rose::transfer
