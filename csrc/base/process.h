// Other processes: who is at the end of a socket, whether it still runs, and how it is rung.
#pragma once

#include <sys/types.h>

#include <poll.h>

#include <span>

#include "base/clock.h"
#include "base/memfd.h"
#include "base/status.h"

namespace rose {

// Owns one eventfd: a bell between processes. It stays rung until it is silenced, however often it
// was rung; neither side ever waits for the other.
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

// Waits until one of `fds` is ready, for at most `timeout_ns`; a negative one counts as 0. False at
// the deadline and on a signal: the caller looks again.
bool poll_for(std::span<pollfd> fds, Nanoseconds timeout_ns) noexcept;

// A copy of somebody's descriptor, close-on-exec; theirs stays theirs.
Result<FileDescriptor> duplicate_fd(int fd) noexcept;

// One process, by a descriptor that names it alone: a later process with its number is another.
class Process {
 public:
  static Result<Process> open(pid_t pid) noexcept;
  // The peer of a connected Unix socket, as the kernel recorded it at connect. Where the kernel
  // gives no descriptor for it (before Linux 6.5), its number is opened, and refused as Unavailable
  // when the peer ended meanwhile: only then can the number be another's.
  static Result<Process> of_peer(int socket_fd) noexcept;

  pid_t pid() const noexcept { return pid_; }
  // Of the peer; -1 when it was opened by number.
  uid_t uid() const noexcept { return uid_; }
  // False once every thread of it has ended.
  bool is_alive() const noexcept;
  // SIGKILL. Ok also when it is gone already.
  Status kill() const noexcept;
  // Readable when it is gone.
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
