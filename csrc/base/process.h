// Handles of other processes, such as the peer of a socket, and a bell between processes.
#pragma once

#include <sys/types.h>

#include <poll.h>

#include <span>

#include "base/clock.h"
#include "base/memfd.h"
#include "base/status.h"

namespace rose {

// Owns one eventfd: a bell between processes. After any number of rings it stays rung until a
// process silences it. No call waits.
class EventFd {
 public:
  static Result<EventFd> create() noexcept;
  explicit EventFd(FileDescriptor fd) noexcept : fd_{std::move(fd)} {}

  void ring() const noexcept;
  void silence() const noexcept;
  int get() const noexcept { return fd_.get(); }

 private:
  FileDescriptor fd_;
};

// Waits until one of `fds` is ready, for at most `timeout_ns`; a negative value counts as 0.
// Returns whether one is ready; a signal can end the wait early with false.
bool poll_for(std::span<pollfd> fds, Nanoseconds timeout_ns) noexcept;

// Returns a close-on-exec copy of a descriptor; the caller keeps the original.
Result<FileDescriptor> duplicate_fd(int fd) noexcept;

// One process, identified by a pidfd, so a later process with the same id is never taken for it.
class Process {
 public:
  static Result<Process> open(pid_t pid) noexcept;
  // Opens the peer of a connected Unix socket, as the kernel recorded it at connect. A kernel
  // before Linux 6.5 gives out no pidfd of the peer, so the peer is opened by its id; Unavailable
  // if the peer has ended, because its id may then belong to another process.
  static Result<Process> of_peer(int socket_fd) noexcept;

  pid_t pid() const noexcept { return pid_; }
  // User id of the peer after of_peer(); -1 after open().
  uid_t uid() const noexcept { return uid_; }
  // False once every thread of the process has ended.
  bool is_alive() const noexcept;
  // Sends SIGKILL. Ok if the process is already gone.
  Status kill() const noexcept;
  // The pidfd, readable once the process is gone.
  int get() const noexcept { return fd_.get(); }
  Result<Process> duplicate() const noexcept;

 private:
  Process(FileDescriptor fd, pid_t pid, uid_t uid) noexcept
      : fd_{std::move(fd)}, pid_{pid}, uid_{uid} {}

  FileDescriptor fd_;
  pid_t pid_;
  uid_t uid_;
};

}  // namespace rose
