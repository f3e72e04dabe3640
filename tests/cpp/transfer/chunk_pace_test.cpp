// A pace never lets through too many bytes, for any requests at any time.
#include "transfer/chunk_pace.h"

#include <cstdint>
#include <random>
#include <vector>

#include "check.h"

using namespace rose::transfer;
using rose::Nanoseconds;

namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;

struct Taken {
  Nanoseconds at_ns;
  std::uint64_t nbytes;
};

// The law: between any two moments at most rate * time + burst.
bool holds(const std::vector<Taken>& all, std::uint64_t bytes_per_s, std::uint64_t burst_bytes) {
  for (std::size_t first = 0; first < all.size(); ++first) {
    __extension__ using Wide = unsigned __int128;
    Wide sum = 0;
    for (std::size_t last = first; last < all.size(); ++last) {
      sum += all[last].nbytes;
      const Wide time = static_cast<Wide>(all[last].at_ns - all[first].at_ns);
      if ((sum - burst_bytes) * kSecond > time * bytes_per_s && sum > burst_bytes) return false;
    }
  }
  return true;
}

}  // namespace

TEST(no_window_has_more_than_its_share) {
  std::mt19937_64 random{7};
  for (const std::uint64_t bytes_per_s : {1ULL, 999ULL, 1'000'000ULL, 12'500'000'001ULL}) {
    for (const std::uint64_t burst_bytes : {1ULL, 16'384ULL, 1ULL << 20}) {
      ChunkPace pace;
      Nanoseconds now_ns = 5;
      pace.set(now_ns, bytes_per_s, burst_bytes);
      std::vector<Taken> all;
      for (int i = 0; i < 200; ++i) {
        now_ns +=
            static_cast<Nanoseconds>(random() % (2 * burst_bytes * kSecond / bytes_per_s + 2));
        const std::uint64_t available = pace.available(now_ns);
        CHECK(available <= burst_bytes);
        const std::uint64_t nbytes = random() % 3 == 0 ? available : random() % (available + 1);
        pace.take(now_ns, nbytes);
        all.push_back({now_ns, nbytes});
      }
      CHECK(holds(all, bytes_per_s, burst_bytes));
    }
  }
}

TEST(who_takes_all_there_is_gets_the_rate) {
  ChunkPace pace;
  pace.set(0, 1'000'000, 20'000);
  std::uint64_t sum = 0;
  for (Nanoseconds now_ns = 0; now_ns <= kSecond; now_ns += kSecond / 100) {
    const std::uint64_t available = pace.available(now_ns);
    pace.take(now_ns, available);
    sum += available;
  }
  CHECK(sum <= 1'020'000 && sum >= 1'019'800);  // a byte is lost to rounding now and then
}

TEST(after_the_wait_it_is_available_and_not_much_before) {
  ChunkPace pace;
  pace.set(0, 1'000, 500);
  pace.take(0, 500);
  for (const std::uint64_t nbytes : {1ULL, 100ULL, 500ULL, 900ULL}) {
    const Nanoseconds wait_ns = pace.wait_ns(0, nbytes);
    const std::uint64_t want = std::min<std::uint64_t>(nbytes, 500);
    CHECK(pace.available(wait_ns) >= want);
    CHECK(pace.available(wait_ns - kSecond / 1'000) < want);
  }
}

TEST(a_new_rate_gives_nobody_a_new_burst) {
  ChunkPace pace;
  pace.set(0, 1'000, 500);
  pace.take(0, 500);
  for (int i = 0; i < 100; ++i) pace.set(0, i % 2 == 0 ? 2'000 : 1'000, 500);
  CHECK_EQ(pace.available(0), 0);
  pace.set(0, 0, 500);
  CHECK_EQ(pace.available(0), ChunkPace::kUnlimited);
  CHECK_EQ(pace.wait_ns(0, 1 << 30), 0);
}

TEST(a_burst_of_any_size_overflows_nothing) {
  ChunkPace pace;
  pace.set(1, 1, ~std::uint64_t{0});
  CHECK_EQ(pace.available(1), ChunkPace::kBurstBytesMax);
  pace.take(1, ChunkPace::kBurstBytesMax);
  CHECK_EQ(pace.available(1), 0);
  CHECK_EQ(pace.available(1 + 10 * kSecond), 10);
  pace.set(1, ~std::uint64_t{0}, 1 << 20);
  CHECK_EQ(pace.available(1 + kSecond), 1 << 20);
}
