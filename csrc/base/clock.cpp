#include "base/clock.h"

#include <ctime>

namespace rose {

Nanoseconds BootClock::now_ns() const noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<Nanoseconds>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace rose
