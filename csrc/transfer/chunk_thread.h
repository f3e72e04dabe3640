// The threads that move chunks, in somebody else's process: they take no signal of it.
#pragma once

#include <pthread.h>

#include <csignal>
#include <cstddef>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace rose::transfer {

// With nothing to do a thread looks again after an hour.
inline constexpr Nanoseconds kLongestSleepNs = 3'600'000'000'000;
// What one stream moves before the next has its turn: enough to make the calls cheap.
inline constexpr std::size_t kShareBytes = 1 << 20;
// Under a pace, the least that is worth a call.
inline constexpr std::size_t kPacedStepBytes = 16 << 10;

// Starts `work` with every signal blocked: handlers stay with the threads of the process, and a
// write of libssl to a connection that is gone raises no SIGPIPE.
template <typename Work>
Status start_quietly(std::thread& thread, Work work) noexcept {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    thread = std::thread{std::move(work)};  // inherits the mask
  } catch (const std::system_error& error) {
    status = from_errno("starting a thread", error.code().value());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace rose::transfer
