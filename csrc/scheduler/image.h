// The state of the scheduler as bytes.
//
// A struct lists its members once, in image order, for both directions:
//
//   template <typename Image>
//   void image(Image& image) {
//     image(first, second);
//   }
//
// A new member adds one word to that list. A changed layout needs a new kImageVersion in
// core_image.cpp.
// Numbers are little-endian, as in memory. Hash tables are written in key order, so that equal
// states give equal bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rose::scheduler {

// Number of values of an enumeration, which start at 0.
template <typename Enum>
struct EnumSize;

template <typename T>
concept ImageNumber = std::is_arithmetic_v<T>;

template <typename T>
concept ImageEnum = std::is_enum_v<T>;

// True if an external number is a value of an enumeration.
template <ImageEnum Enum>
constexpr bool is_value(std::int64_t code) noexcept {
  return code >= 0 && static_cast<std::size_t>(code) < EnumSize<Enum>::value;
}

class ImageWriter {
 public:
  explicit ImageWriter(std::vector<std::byte>& bytes) noexcept : bytes_{bytes} {}

  template <typename... T>
  void operator()(T&... values) {
    (put(values), ...);
  }

 private:
  template <ImageNumber T>
  void put(T value) {
    const auto* const begin = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), begin, begin + sizeof(T));
  }
  template <ImageEnum T>
  void put(T value) {
    put(static_cast<std::underlying_type_t<T>>(value));
  }
  template <typename T>
    requires std::is_class_v<T>
  void put(T& value) {
    value.image(*this);
  }
  template <typename A, typename B>
  void put(std::pair<A, B>& value) {
    put(value.first);
    put(value.second);
  }
  template <typename T, std::size_t n>
  void put(std::array<T, n>& values) {
    for (T& value : values) put(value);
  }
  template <typename T>
  void put(std::vector<T>& values) {
    put_all(values);
  }
  template <typename T>
  void put(std::deque<T>& values) {
    put_all(values);
  }
  template <typename T>
  void put(std::set<T>& values) {
    put(std::uint64_t{values.size()});
    for (T value : values) put(value);
  }
  template <typename K, typename V>
  void put(std::map<K, V>& values) {
    put(std::uint64_t{values.size()});
    for (auto& [constant_key, value] : values) {
      K key = constant_key;
      put(key);
      put(value);
    }
  }
  template <typename K, typename V>
  void put(std::unordered_map<K, V>& values) {
    std::vector<K> keys;
    keys.reserve(values.size());
    for (const auto& entry : values) keys.push_back(entry.first);
    std::sort(keys.begin(), keys.end());
    put(std::uint64_t{keys.size()});
    for (K& key : keys) {
      put(key);
      put(values.find(key)->second);
    }
  }
  template <typename Values>
  void put_all(Values& values) {
    put(std::uint64_t{values.size()});
    for (auto& value : values) put(value);
  }

  std::vector<std::byte>& bytes_;
};

// After an error all values read as zero, and is_whole() is false.
class ImageReader {
 public:
  explicit ImageReader(std::span<const std::byte> bytes) noexcept : bytes_{bytes} {}

  // True if all bytes were read without an error.
  bool is_whole() const noexcept { return is_good_ && bytes_.empty(); }

  template <typename... T>
  void operator()(T&... values) {
    (take(values), ...);
  }

 private:
  template <ImageNumber T>
  void take(T& value) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t byte = 0;
      take(byte);
      is_good_ = is_good_ && byte <= 1;
      value = byte == 1;
    } else {
      value = T{};
      is_good_ = is_good_ && bytes_.size() >= sizeof(T);
      if (!is_good_) return;
      std::memcpy(&value, bytes_.data(), sizeof(T));
      bytes_ = bytes_.subspan(sizeof(T));
    }
  }
  template <ImageEnum T>
  void take(T& value) noexcept {
    std::underlying_type_t<T> code{};
    take(code);
    is_good_ = is_good_ && is_value<T>(code);
    value = is_good_ ? static_cast<T>(code) : T{};
  }
  template <typename T>
    requires std::is_class_v<T>
  void take(T& value) {
    value.image(*this);
  }
  template <typename A, typename B>
  void take(std::pair<A, B>& value) {
    take(value.first);
    take(value.second);
  }
  template <typename T, std::size_t n>
  void take(std::array<T, n>& values) {
    for (T& value : values) take(value);
  }
  template <typename T>
  void take(std::vector<T>& values) {
    take_all(values);
  }
  template <typename T>
  void take(std::deque<T>& values) {
    take_all(values);
  }
  template <typename T>
  void take(std::set<T>& values) {
    values.clear();
    for (std::uint64_t left = take_count(); left > 0 && is_good_; --left) {
      T value{};
      take(value);
      is_good_ = is_good_ && values.insert(value).second;
    }
  }
  template <typename K, typename V>
  void take(std::map<K, V>& values) {
    take_entries<K>(values);
  }
  template <typename K, typename V>
  void take(std::unordered_map<K, V>& values) {
    take_entries<K>(values);
  }

  // Every counted item takes at least one byte. So the number of bytes left limits the memory that
  // a bad count can take.
  std::uint64_t take_count() noexcept {
    std::uint64_t count = 0;
    take(count);
    is_good_ = is_good_ && count <= bytes_.size();
    return is_good_ ? count : 0;
  }
  template <typename Values>
  void take_all(Values& values) {
    values.clear();
    for (std::uint64_t left = take_count(); left > 0 && is_good_; --left) {
      take(values.emplace_back());
    }
  }
  template <typename K, typename Values>
  void take_entries(Values& values) {
    values.clear();
    for (std::uint64_t left = take_count(); left > 0 && is_good_; --left) {
      K key{};
      take(key);
      const auto [place, is_new] = values.try_emplace(key);
      is_good_ = is_good_ && is_new;
      if (is_good_) take(place->second);
    }
  }

  std::span<const std::byte> bytes_;
  bool is_good_{true};
};

}  // namespace rose::scheduler
