// TLS 1.3 with a certificate on both sides, by the libssl of the machine, which is opened when TLS
// is first asked for: nothing here is linked, and a machine without it can do all else.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace rose::transfer {

// The entries of libssl; defined in tls.cpp, where its types are opaque.
struct TlsLibrary;

// PEM files: of this side's certificate (its chain behind it), of its key, and of the authorities
// whose certificates the other side may show.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;
};

enum class TlsSide { kServer, kClient };

// What a call on a connection that never blocks came to. kClosed: in order or not, it is over.
enum class Io { kDone, kWantRead, kWantWrite, kClosed };

struct IoResult {
  Io state{Io::kDone};
  std::size_t nbytes{0};  // that were moved; > 0 only with kDone
};

// One connection. It borrows its socket. One thread.
class TlsSession {
 public:
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;
  ~TlsSession();

  // Call it until it is done: nothing can be read or written before.
  Io handshake() noexcept;
  IoResult read(std::span<std::byte> room) noexcept;
  IoResult write(std::span<const std::byte> content) noexcept;
  // Says goodbye, if the socket takes it at once.
  void shut_down() noexcept;
  // Why it is closed, in a few words; empty when the other side just left. Never sent to anyone.
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

// The certificates of one side. Any thread; sessions outlive it.
class TlsContext {
 public:
  // InvalidArgument when a file is missing, is no PEM, has expired, or key and certificate do not
  // belong together; Unavailable when the machine has no libssl.so.3.
  static Result<std::shared_ptr<const TlsContext>> create(const TlsFiles& files,
                                                          TlsSide side) noexcept;
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ~TlsContext();

  // A session over a connected socket that does not block. Of a client: only with a server whose
  // certificate is for `host`, a name or an address; of a server `host` is not looked at.
  Result<std::unique_ptr<TlsSession>> open(int socket, const std::string& host) const noexcept;

 private:
  TlsContext(std::shared_ptr<const TlsLibrary> library, void* context, TlsSide side) noexcept;
  Status load(const TlsFiles& files) noexcept;

  std::shared_ptr<const TlsLibrary> library_;
  void* context_;
  TlsSide side_;
};

}  // namespace rose::transfer
