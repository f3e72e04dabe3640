#include "transfer/chunk_channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace rose::transfer {

namespace {

constexpr int kBacklog = 128;

int family_of(const Address& address) noexcept { return address.bytes.ss_family; }

const sockaddr* pointer_to(const Address& address) noexcept {
  return reinterpret_cast<const sockaddr*>(&address.bytes);
}

bool would_block(int error) noexcept {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

ChunkChannel::~ChunkChannel() {
  if (tls_ != nullptr && socket_.is_open() && owner_.is_here()) tls_->shut_down();
}

IoResult ChunkChannel::read(std::span<std::byte> room) noexcept {
  if (tls_ != nullptr) return tls_->read(room);
  const ssize_t got = ::recv(socket_.get(), room.data(), room.size(), 0);
  if (got > 0) return {Io::kDone, static_cast<std::size_t>(got)};
  if (got < 0 && would_block(errno)) return {Io::kWantRead, 0};
  error_ = got < 0 ? errno : 0;
  return {Io::kClosed, 0};
}

IoResult ChunkChannel::write(std::span<const iovec> parts) noexcept {
  if (tls_ != nullptr) {
    std::size_t sent = 0;
    for (const iovec& part : parts) {
      const IoResult one =
          tls_->write({static_cast<const std::byte*>(part.iov_base), part.iov_len});
      sent += one.nbytes;
      if (one.state != Io::kDone && sent == 0) return one;
      if (one.nbytes < part.iov_len) break;
    }
    return {Io::kDone, sent};
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());  // sendmsg only reads it
  message.msg_iovlen = parts.size();
  const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  if (sent >= 0) return {Io::kDone, static_cast<std::size_t>(sent)};
  if (would_block(errno)) return {Io::kWantWrite, 0};
  error_ = errno;
  return {Io::kClosed, 0};
}

std::string ChunkChannel::failure() const {
  if (tls_ != nullptr && !tls_->failure().empty()) return "TLS: " + tls_->failure();
  if (error_ == 0) return {};
  char buffer[128];
  return ::strerror_r(error_, buffer, sizeof buffer);
}

Result<std::vector<Address>> resolve(const std::string& host, std::uint16_t port) noexcept {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Status::unavailable("'" + host + "' cannot be resolved: " + ::gai_strerror(error));
  }
  std::vector<Address> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Address address{.bytes = {}, .size = one->ai_addrlen};
    std::memcpy(&address.bytes, one->ai_addr, one->ai_addrlen);
    addresses.push_back(address);
  }
  ::freeaddrinfo(found);
  return addresses;
}

Result<FileDescriptor> listen_on(const Address& address) noexcept {
  FileDescriptor socket{
      ::socket(family_of(address), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP)};
  if (!socket.is_open()) return from_errno("cannot open a socket", errno);
  const int yes = 1;
  // With this a restarted server gets its old port despite lingering connections.
  static_cast<void>(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)));
  if (::bind(socket.get(), pointer_to(address), address.size) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return Status::unavailable(from_errno("cannot listen on the port", errno).message());
  }
  return socket;
}

Result<FileDescriptor> connect_to(const Address& address) noexcept {
  FileDescriptor socket{
      ::socket(family_of(address), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP)};
  if (!socket.is_open()) return from_errno("cannot open a socket", errno);
  send_at_once(socket);
  if (::connect(socket.get(), pointer_to(address), address.size) != 0 && errno != EINPROGRESS) {
    return Status::unavailable(from_errno("connect", errno).message());
  }
  return socket;
}

Result<std::uint16_t> port_of(const FileDescriptor& socket) noexcept {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return from_errno("getsockname", errno);
  }
  if (bound.ss_family == AF_INET6) {
    sockaddr_in6 address{};
    std::memcpy(&address, &bound, sizeof(address));
    return ntohs(address.sin6_port);
  }
  sockaddr_in address{};
  std::memcpy(&address, &bound, sizeof(address));
  return ntohs(address.sin_port);
}

void send_at_once(const FileDescriptor& socket) noexcept {
  const int yes = 1;
  static_cast<void>(::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)));
}

}  // namespace rose::transfer
