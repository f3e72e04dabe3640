// Calls of several threads at the same time.
#pragma once

#include <barrier>
#include <thread>
#include <vector>

namespace rose::test {

// Calls `work` from eight threads as close together as a barrier allows, and joins them.
template <typename Work>
void from_eight_threads(const Work& work) {
  constexpr int kThreads = 8;
  std::barrier start{kThreads};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      work();
    });
  }
  for (std::thread& one : threads) one.join();
}

}  // namespace rose::test
