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
  // Immediately done without TLS.
  Io handshake() noexcept { return tls_ != nullptr ? tls_->handshake() : Io::kDone; }
  // At most room.size() > 0 bytes; TLS may buffer more, so read until kWantRead.
  IoResult read(std::span<std::byte> room) noexcept;
  // Writes the parts in order, as far as the socket accepts them.
  IoResult write(std::span<const iovec> parts) noexcept;
  // Why it is closed; empty if no reason was given.
  std::string failure() const;

 private:
  FileDescriptor socket_;
  std::unique_ptr<TlsSession> tls_;
  int error_{0};
};

// The addresses of a name, or of an address as text. Blocks while the resolver does. Port 0 only
// for a listener.
struct Address {
  sockaddr_storage bytes;
  socklen_t size;
};
Result<std::vector<Address>> resolve(const std::string& host, std::uint16_t port) noexcept;

// A listening socket, and a socket that is connecting to an address. Neither blocks.
Result<FileDescriptor> listen_on(const Address& address) noexcept;
Result<FileDescriptor> connect_to(const Address& address) noexcept;
Result<std::uint16_t> port_of(const FileDescriptor& socket) noexcept;
// Sends frames without delay (no Nagle).
void send_at_once(const FileDescriptor& socket) noexcept;

}  // namespace rose::transfer
