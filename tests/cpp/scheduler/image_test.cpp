#include "scheduler/image.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "check.h"
#include "scheduler/events.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

TEST(a_count_beyond_the_bytes_takes_no_memory) {
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

TEST(a_repeated_key_is_refused) {
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
