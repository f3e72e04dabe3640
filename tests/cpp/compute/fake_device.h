// The fake driver in this process, and a device that runs in parallel to the host: the fake's
// streams advance only when it is called.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "driver/fixture.h"

namespace rose::test {

class Running {
 public:
  Running()
      : thread_{[this] {
          while (!stop_.load()) {
            fake().pump();
            std::this_thread::sleep_for(std::chrono::microseconds(20));
          }
        }} {}
  ~Running() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace rose::test
