#include "base/process.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <utility>

#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424  // Linux 5.1; the same number on every architecture
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434  // Linux 5.3
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace rose {

// ---- bells

Result<EventFd> EventFd::create() noexcept {
  FileDescriptor fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!fd.is_open()) return from_errno("eventfd", errno);
  return EventFd{std::move(fd)};
}

void EventFd::ring() const noexcept {
  const std::uint64_t one = 1;
  // The write fails only if the counter is full; then the bell is already rung.
  static_cast<void>(!::write(fd_.get(), &one, sizeof(one)));
}

void EventFd::silence() const noexcept {
  std::uint64_t rung = 0;
  static_cast<void>(!::read(fd_.get(), &rung, sizeof(rung)));
}

bool poll_for(std::span<pollfd> fds, Nanoseconds timeout_ns) noexcept {
  const Nanoseconds left = std::max<Nanoseconds>(timeout_ns, 0);
  const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
  return ::ppoll(fds.data(), static_cast<nfds_t>(fds.size()), &timeout, nullptr) > 0;
}

Result<FileDescriptor> duplicate_fd(int fd) noexcept {
  FileDescriptor copy{::fcntl(fd, F_DUPFD_CLOEXEC, 0)};
  if (!copy.is_open()) return from_errno("fcntl(F_DUPFD_CLOEXEC)", errno);
  return copy;
}

// ---- processes

Result<Process> Process::open(pid_t pid) noexcept {
  FileDescriptor fd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  if (!fd.is_open()) return from_errno("pidfd_open, which needs Linux 5.3", errno);
  return Process{std::move(fd), pid, static_cast<uid_t>(-1)};
}

Result<Process> Process::of_peer(int socket_fd) noexcept {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return from_errno("getsockopt(SO_PEERCRED)", errno);
  }
  int exact = -1;
  size = sizeof(exact);
  if (::getsockopt(socket_fd, SOL_SOCKET, SO_PEERPIDFD, &exact, &size) == 0) {
    return Process{FileDescriptor{exact}, peer.pid, peer.uid};
  }
  Result<Process> opened = open(peer.pid);
  if (!opened.ok()) return opened.status();
  // The pid was the peer's at the connection. It can be reused only after the peer ended, which
  // closed the socket. So while the socket is open, the pid is the peer's.
  pollfd hung_up{socket_fd, POLLRDHUP, 0};
  if (poll_for({&hung_up, 1}, 0)) return Status::unavailable("the peer of the socket is gone");
  opened.value().uid_ = peer.uid;
  return opened;
}

bool Process::is_alive() const noexcept {
  pollfd ended{fd_.get(), POLLIN, 0};
  return !poll_for({&ended, 1}, 0);
}

Status Process::kill() const noexcept {
  if (::syscall(SYS_pidfd_send_signal, fd_.get(), SIGKILL, nullptr, 0) == 0 || errno == ESRCH) {
    return {};
  }
  return from_errno("pidfd_send_signal(SIGKILL)", errno);
}

Result<Process> Process::duplicate() const noexcept {
  Result<FileDescriptor> copy = fd_.duplicate();
  if (!copy.ok()) return copy.status();
  return Process{copy.take(), pid_, uid_};
}

}  // namespace rose
