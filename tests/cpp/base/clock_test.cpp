#include "base/clock.h"

#include "check.h"

TEST(boot_clock_never_goes_back) {
  const rose::BootClock clock;
  rose::Nanoseconds last = clock.now_ns();
  for (int i = 0; i < 1000; ++i) {
    const rose::Nanoseconds now = clock.now_ns();
    CHECK(now >= last);
    last = now;
  }
}

TEST(manual_clock_stands_still_until_told) {
  rose::ManualClock clock;
  const rose::Nanoseconds start = clock.now_ns();
  CHECK_EQ(clock.now_ns(), start);
  clock.advance(5);
  CHECK_EQ(clock.now_ns(), start + 5);
}
