// The peer of everything that wakes a thread: one futex round trip between two threads. With
// rose's own two calls, so the peer has no overhead that the subject is spared.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "base/futex.h"

namespace {

constexpr rose::Nanoseconds kLookAgainNs = 20'000'000;
constexpr std::int32_t kWarmUp = 50;

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

// Writes how long each of `count` round trips took to `out_ns`.
extern "C" void futex_round_trips(std::int64_t* out_ns, std::int32_t count) {
  alignas(64) std::atomic<std::uint32_t> ping{0};
  alignas(64) std::atomic<std::uint32_t> pong{0};
  const auto turns = static_cast<std::uint32_t>(count + kWarmUp);
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
    if (turn > kWarmUp) out_ns[turn - kWarmUp - 1] = took.count();
  }
  other.join();
}
