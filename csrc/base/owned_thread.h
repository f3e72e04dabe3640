// Threads that end with their owners.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace rose {

// The process that made an object. A forked child inherits the object, but no thread of it, and
// shares its sockets, bells and memory with the parent. So a destructor with an effect outside its
// own memory acts only if this is here().
class Owner {
 public:
  bool is_here() const noexcept { return ::getpid() == pid_; }

 private:
  pid_t pid_{::getpid()};
};

// A thread that its owner stops and joins.
//
// 1. join() returns when the thread has ended, whichever thread calls it, and however many do.
// 2. All signals are blocked in the thread: the threads of the process that we are a guest in
//    handle them, and a write to a broken connection raises no SIGPIPE.
// 3. In a forked child, where the thread does not exist, join() returns at once.
//
// start() and join() may be called by any thread; the destructor joins.
class OwnedThread {
 public:
  OwnedThread() noexcept = default;
  OwnedThread(const OwnedThread&) = delete;
  OwnedThread& operator=(const OwnedThread&) = delete;
  ~OwnedThread() { join(); }

  // Starts `work`. InvalidArgument if a thread was started and not joined yet; `name` is the
  // thread's name in that error.
  template <typename Work>
  Status start(const char* name, Work work) noexcept;
  // Waits until the thread has ended, which the caller has told it to do.
  void join() noexcept;
  // True from start() until the end of join().
  bool is_running() const noexcept;

 private:
  const Owner owner_;
  mutable std::mutex mutex_;  // guards thread_; held during the join, so later callers wait
  std::unique_ptr<std::thread> thread_;
};

template <typename Work>
Status OwnedThread::start(const char* name, Work work) noexcept {
  const std::scoped_lock lock{mutex_};
  if (thread_ != nullptr) {
    return Status::invalid_argument(std::string{name} + " was started already");
  }
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    thread_ = std::make_unique<std::thread>(std::move(work));  // inherits the mask
  } catch (const std::system_error& error) {
    status = from_errno((std::string{"starting "} + name).c_str(), error.code().value());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace rose
