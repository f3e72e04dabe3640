#include "base/futex.h"

#include <atomic>
#include <thread>

#include "check.h"

namespace {

constexpr rose::Nanoseconds kLong = 20'000'000'000;

}  // namespace

TEST(another_value_does_not_sleep) {
  const rose::BootClock clock;
  const std::atomic<std::uint32_t> word{1};
  const rose::Nanoseconds start = clock.now_ns();
  rose::futex_wait(word, 0, kLong);
  CHECK(clock.now_ns() - start < kLong / 2);
}

TEST(the_deadline_ends_the_sleep) {
  const rose::BootClock clock;
  const std::atomic<std::uint32_t> word{0};
  const rose::Nanoseconds start = clock.now_ns();
  while (clock.now_ns() - start < 2'000'000) rose::futex_wait(word, 0, 2'000'000);
  CHECK(clock.now_ns() - start < kLong / 2);
}

TEST(a_wake_reaches_all_sleepers) {
  std::atomic<std::uint32_t> word{0};
  const auto sleep = [&] {
    while (word.load() == 0) rose::futex_wait(word, 0, kLong);
  };
  const rose::BootClock clock;
  const rose::Nanoseconds start = clock.now_ns();
  std::thread first{sleep};
  std::thread second{sleep};
  word.store(1);
  rose::futex_wake_all(word);
  first.join();
  second.join();
  CHECK(clock.now_ns() - start < kLong / 2);
}
