// Prints the nanoseconds of each futex round trip between two threads: COUNT.
//
// The peer of everything that wakes a thread. With rose's own two calls, so the peer has no
// overhead that the subject is spared.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/futex.h"

namespace {

constexpr rose::Nanoseconds kLookAgainNs = 20'000'000;
constexpr std::uint32_t kWarmUp = 50;

void await_turn(const std::atomic<std::uint32_t>& word, std::uint32_t turn) noexcept {
  for (std::uint32_t seen = word.load(); seen != turn; seen = word.load()) {
    rose::futex_wait(word, seen, kLookAgainNs);
  }
}

void give_turn(std::atomic<std::uint32_t>& word, std::uint32_t turn) noexcept {
  word.store(turn);
  rose::futex_wake_all(word);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto count = static_cast<std::uint32_t>(std::atoi(argv[1]));
  std::vector<std::int64_t> samples;
  samples.reserve(count);
  alignas(64) std::atomic<std::uint32_t> ping{0};
  alignas(64) std::atomic<std::uint32_t> pong{0};
  const std::uint32_t turns = count + kWarmUp;
  std::thread other{[&] {
    for (std::uint32_t turn = 1; turn <= turns; ++turn) {
      await_turn(ping, turn);
      give_turn(pong, turn);
    }
  }};
  for (std::uint32_t turn = 1; turn <= turns; ++turn) {
    const auto began = std::chrono::steady_clock::now();
    give_turn(ping, turn);
    await_turn(pong, turn);
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began;
    if (turn > kWarmUp) samples.push_back(took.count());
  }
  other.join();
  for (const std::int64_t one : samples) std::printf("%lld\n", static_cast<long long>(one));
}
