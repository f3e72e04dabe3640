// One TCP connection that never blocks, plain or with TLS, and functions to open one.
#pragma once

#include <netdb.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/memfd.h"
#include "base/owned_thread.h"
#include "base/status.h"
#include "transfer/tls.h"

namespace rose::transfer {

// Owns its socket. One thread.
class ChunkChannel {
 public:
  ChunkChannel(FileDescriptor socket, std::unique_ptr<TlsSession> tls) noexcept
      : socket_{std::move(socket)}, tls_{std::move(tls)} {}
  ChunkChannel(ChunkChannel&&) noexcept = default;
  ChunkChannel& operator=(ChunkChannel&&) noexcept = default;
  ~ChunkChannel();

  int get() const noexcept { return socket_.get(); }
  // Without TLS this is done immediately.
  Io handshake() noexcept { return tls_ != nullptr ? tls_->handshake() : Io::kDone; }
  // Reads at most room.size() > 0 bytes. TLS may have buffered more, so read until kWantRead.
  IoResult read(std::span<std::byte> room) noexcept;
  // Writes the parts in order, as far as the socket accepts them.
  IoResult write(std::span<const iovec> parts) noexcept;
  // The reason why the connection is closed; empty if none was given.
  std::string failure() const;

 private:
  Owner owner_;
  FileDescriptor socket_;
  std::unique_ptr<TlsSession> tls_;
  int error_{0};
};

// One address of a host. resolve() returns all addresses of a host, which is a name or an address
// as text; it blocks until the resolver has answered. Port 0 is only for a listener.
struct Address {
  sockaddr_storage bytes;
  socklen_t size;
};
Result<std::vector<Address>> resolve(const std::string& host, std::uint16_t port) noexcept;

// Return a listening socket, and a socket that is connecting to an address. Neither call blocks.
Result<FileDescriptor> listen_on(const Address& address) noexcept;
Result<FileDescriptor> connect_to(const Address& address) noexcept;
Result<std::uint16_t> port_of(const FileDescriptor& socket) noexcept;
// Disables Nagle's algorithm, so that frames are sent without delay.
void send_at_once(const FileDescriptor& socket) noexcept;

}  // namespace rose::transfer
