#include "base/owned_thread.h"

#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>

#include "check.h"
#include "together.h"

using rose::OwnedThread;
using rose::Owner;

TEST(every_join_returns_after_the_end_of_the_thread) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<bool> is_told{false};
    std::atomic<bool> has_ended{false};
    OwnedThread thread;
    CHECK(thread
              .start("a test",
                     [&] {
                       while (!is_told.load()) std::this_thread::yield();
                       std::this_thread::sleep_for(std::chrono::microseconds(100));
                       has_ended.store(true);
                     })
              .ok());
    CHECK(thread.is_running());
    CHECK(!thread.start("a test", [] {}).ok());
    rose::test::from_eight_threads([&] {
      is_told.store(true);
      thread.join();
      CHECK(has_ended.load());
    });
    CHECK(!thread.is_running());
  }
}

TEST(a_thread_can_be_started_again_after_a_join) {
  std::atomic<int> runs{0};
  OwnedThread thread;
  for (int i = 0; i < 3; ++i) {
    CHECK(thread.start("a test", [&] { ++runs; }).ok());
    thread.join();
    thread.join();
  }
  CHECK_EQ(runs.load(), 3);
}

TEST(signals_are_blocked_in_the_thread_only) {
  sigset_t inside;
  sigset_t outside;
  OwnedThread thread;
  CHECK(thread.start("a test", [&] { ::pthread_sigmask(SIG_SETMASK, nullptr, &inside); }).ok());
  thread.join();
  ::pthread_sigmask(SIG_SETMASK, nullptr, &outside);
  for (const int one : {SIGINT, SIGTERM, SIGPIPE}) {
    CHECK(::sigismember(&inside, one) == 1);
    CHECK(::sigismember(&outside, one) == 0);
  }
}

TEST(a_forked_child_neither_joins_nor_ends_a_thread_of_its_parent) {
  std::atomic<bool> is_told{false};
  auto thread = std::make_unique<OwnedThread>();
  const Owner owner;
  CHECK(thread
            ->start("a test",
                    [&] {
                      while (!is_told.load()) std::this_thread::yield();
                    })
            .ok());
  const pid_t child = ::fork();
  if (child == 0) {
    if (owner.is_here()) ::_exit(2);
    thread->join();
    thread.reset();
    ::_exit(0);
  }
  int status = -1;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK(owner.is_here());
  CHECK(thread->is_running());
  is_told.store(true);
}
