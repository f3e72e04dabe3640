#include "scheduler/image.h"

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "check.h"
#include "scheduler/events.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

struct Part {
  std::int64_t number{0};
  WorkerKind kind{WorkerKind::kDedicated};

  bool operator==(const Part&) const = default;
  template <typename Image>
  void image(Image& image) {
    image(number, kind);
  }
};

struct All {
  bool is_so{false};
  double real{0};
  std::pair<std::int64_t, std::uint8_t> pair;
  std::array<std::int64_t, 2> array{};
  std::vector<Part> parts;
  std::deque<std::int64_t> numbers;
  std::set<std::int64_t> set;
  std::map<std::int64_t, Part> map;
  std::unordered_map<std::int64_t, std::vector<double>> table;

  bool operator==(const All&) const = default;
  template <typename Image>
  void image(Image& image) {
    image(is_so, real, pair, array, parts, numbers, set, map, table);
  }
};

All some() {
  All all{.is_so = true,
          .real = -0.1,
          .pair = {std::numeric_limits<std::int64_t>::min(), 255},
          .array = {1, -2},
          .parts = {{1, WorkerKind::kBorrowed}, {2, WorkerKind::kDedicated}},
          .numbers = {3, 1, 2},
          .set = {5, -5},
          .map = {{9, {4, WorkerKind::kBorrowed}}},
          .table = {}};
  for (std::int64_t i = 40; i > 0; --i) all.table[i * 977] = {static_cast<double>(i), 0.5};
  return all;
}

std::vector<std::byte> bytes_of(All all) {
  std::vector<std::byte> bytes;
  ImageWriter write{bytes};
  write(all);
  return bytes;
}

TEST(what_was_written_is_read) {
  const std::vector<std::byte> bytes = bytes_of(some());
  All all;
  ImageReader read{bytes};
  read(all);
  CHECK(read.is_whole());
  CHECK(all == some());
  CHECK(bytes_of(all) == bytes);
}

TEST(hash_tables_are_written_in_the_order_of_their_keys) {
  All one = some();
  All other = some();
  other.table.clear();
  for (std::int64_t i = 1; i <= 40; ++i) other.table[i * 977] = {static_cast<double>(i), 0.5};
  other.table.rehash(1000);
  CHECK(bytes_of(one) == bytes_of(other));
}

TEST(bytes_cut_short_or_left_over_are_no_image) {
  std::vector<std::byte> bytes = bytes_of(some());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    All all;
    ImageReader read{std::span{bytes}.first(size)};
    read(all);
    CHECK(!read.is_whole());
  }
  bytes.push_back(std::byte{0});
  All all;
  ImageReader read{bytes};
  read(all);
  CHECK(!read.is_whole());
}

TEST(count_beyond_the_bytes_takes_no_memory) {
  std::vector<std::byte> bytes;
  std::uint64_t huge = std::uint64_t{1} << 60;
  ImageWriter{bytes}(huge);
  std::vector<double> values;
  ImageReader read{bytes};
  read(values);
  CHECK(!read.is_whole());
  CHECK(values.empty());
}

TEST(values_that_do_not_exist_are_refused) {
  std::vector<std::byte> bytes;
  std::uint8_t two = 2;
  ImageWriter{bytes}(two);
  WorkerKind kind{};
  ImageReader reads_kind{bytes};
  reads_kind(kind);
  CHECK(!reads_kind.is_whole());
  bool is_so = false;
  ImageReader reads_bool{bytes};
  reads_bool(is_so);
  CHECK(!reads_bool.is_whole());
}

TEST(key_that_comes_twice_is_refused) {
  std::vector<std::byte> bytes;
  std::uint64_t count = 2;
  std::int64_t key = 5;
  ImageWriter{bytes}(count, key, key);
  std::set<std::int64_t> keys;
  ImageReader read{bytes};
  read(keys);
  CHECK(!read.is_whole());
}

}  // namespace
