// TLS 1.3 through the machine's libssl; both peers show a certificate. rose does not link libssl
// but loads it at the first use of TLS, so a machine without libssl can do everything else.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace rose::transfer {

// The entries of libssl; defined in tls.cpp, where its types are opaque.
struct TlsLibrary;

// PEM files: the certificate chain of this program, its key, and the authorities that may have
// signed the peer's certificate.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;
};

enum class TlsSide { kServer, kClient };

// Result of a call on a connection that never blocks. kClosed: the connection has ended, with or
// without an error.
enum class Io { kDone, kWantRead, kWantWrite, kClosed };

struct IoResult {
  Io state{Io::kDone};
  std::size_t nbytes{0};  // bytes moved; > 0 only with kDone
};

// One connection. Borrows its socket. One thread.
class TlsSession {
 public:
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;
  ~TlsSession();

  // Must be repeated until it returns kDone; before that nothing can be read or written.
  Io handshake() noexcept;
  IoResult read(std::span<std::byte> room) noexcept;
  IoResult write(std::span<const std::byte> content) noexcept;
  // Sends a close notification, if the socket accepts it at once.
  void shut_down() noexcept;
  // The reason why the connection is closed, in a few words; empty if the peer closed it without an
  // error. Never sent to the peer.
  const std::string& failure() const noexcept { return failure_; }

 private:
  friend class TlsContext;
  TlsSession(std::shared_ptr<const TlsLibrary> library, void* session) noexcept;

  Io outcome(int answer) noexcept;

  std::shared_ptr<const TlsLibrary> library_;
  void* session_;
  bool is_broken_{false};
  std::string failure_;
};

// The certificates of a server or a client. Any thread may use it; sessions may outlive it.
class TlsContext {
 public:
  // InvalidArgument if a file is missing, not PEM, or expired, or if key and certificate do not
  // match; Unavailable if the machine has no libssl.so.3.
  static Result<std::shared_ptr<const TlsContext>> create(const TlsFiles& files,
                                                          TlsSide side) noexcept;
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ~TlsContext();

  // Returns a session over a connected nonblocking socket. A client accepts only a server whose
  // certificate is for `host`, a name or an address; a server ignores `host`.
  Result<std::unique_ptr<TlsSession>> open(int socket, const std::string& host) const noexcept;

 private:
  TlsContext(std::shared_ptr<const TlsLibrary> library, void* context, TlsSide side) noexcept;
  Status load(const TlsFiles& files) noexcept;

  std::shared_ptr<const TlsLibrary> library_;
  void* context_;
  TlsSide side_;
};

}  // namespace rose::transfer
