// Threads that move chunks inside a host process, and handle none of its signals.
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

// An idle thread checks again after an hour.
inline constexpr Nanoseconds kLongestSleepNs = 3'600'000'000'000;
// Bytes that one stream moves before the next stream's turn: enough to make calls cheap.
inline constexpr std::size_t kShareBytes = 1 << 20;
// The smallest transfer under a pace that is worth a call.
inline constexpr std::size_t kPacedStepBytes = 16 << 10;

// Starts a thread that runs `work` with every signal blocked: the process's other threads handle
// signals, and a write of libssl to a broken connection raises no SIGPIPE.
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
