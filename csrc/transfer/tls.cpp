#include "transfer/tls.h"

#include <arpa/inet.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <string_view>

namespace rose::transfer {

// The functions that rose calls in libssl and its libcrypto. Pointers to OpenSSL's objects are
// void*, so that OpenSSL's headers are not needed.
#define ROSE_TLS_ENTRIES(X)                                                \
  X(TLS_method, const void*, ())                                           \
  X(SSL_CTX_new, void*, (const void*))                                     \
  X(SSL_CTX_free, void, (void*))                                           \
  X(SSL_CTX_ctrl, long, (void*, int, long, void*))                         \
  X(SSL_CTX_use_certificate_chain_file, int, (void*, const char*))         \
  X(SSL_CTX_use_PrivateKey_file, int, (void*, const char*, int))           \
  X(SSL_CTX_check_private_key, int, (const void*))                         \
  X(SSL_CTX_load_verify_locations, int, (void*, const char*, const char*)) \
  X(SSL_CTX_set_verify, void, (void*, int, void*))                         \
  X(SSL_CTX_set_num_tickets, int, (void*, std::size_t))                    \
  X(SSL_CTX_get0_certificate, void*, (const void*))                        \
  X(SSL_new, void*, (void*))                                               \
  X(SSL_free, void, (void*))                                               \
  X(SSL_set_fd, int, (void*, int))                                         \
  X(SSL_set_accept_state, void, (void*))                                   \
  X(SSL_set_connect_state, void, (void*))                                  \
  X(SSL_do_handshake, int, (void*))                                        \
  X(SSL_read, int, (void*, void*, int))                                    \
  X(SSL_write, int, (void*, const void*, int))                             \
  X(SSL_shutdown, int, (void*))                                            \
  X(SSL_get_error, int, (const void*, int))                                \
  X(SSL_get_verify_result, long, (const void*))                            \
  X(SSL_get0_param, void*, (void*))                                        \
  X(X509_VERIFY_PARAM_set1_host, int, (void*, const char*, std::size_t))   \
  X(X509_VERIFY_PARAM_set1_ip_asc, int, (void*, const char*))              \
  X(X509_verify_cert_error_string, const char*, (long))                    \
  X(X509_get0_notAfter, const void*, (const void*))                        \
  X(X509_get0_notBefore, const void*, (const void*))                       \
  X(X509_cmp_current_time, int, (const void*))                             \
  X(ERR_clear_error, void, ())                                             \
  X(ERR_get_error, unsigned long, ())                                      \
  X(ERR_reason_error_string, const char*, (unsigned long))

struct TlsLibrary {
#define ROSE_TLS_ENTRY(name, answer, arguments) answer(*name) arguments{nullptr};
  ROSE_TLS_ENTRIES(ROSE_TLS_ENTRY)
#undef ROSE_TLS_ENTRY

  // The library's reason for the failure of this thread's last call.
  std::string reason() const noexcept {
    const char* const words = ERR_reason_error_string(ERR_get_error());
    ERR_clear_error();
    return words != nullptr ? words : "no reason given";
  }
};

namespace {

constexpr const char* kLibrary = "libssl.so.3";

// Constants of openssl/ssl.h, which are part of its binary interface.
constexpr int kFilePem = 1;
constexpr int kVerifyPeerOrFail = 0x01 | 0x02;
constexpr int kCtrlMode = 33;
constexpr int kCtrlSetMinVersion = 123;
constexpr long kTls13 = 0x0304;
// A write may be partial and continue at another address, because frames are sent without a copy.
constexpr long kModePartialWrite = 0x1 | 0x2;
constexpr int kErrorSsl = 1;
constexpr int kErrorWantRead = 2;
constexpr int kErrorWantWrite = 3;
constexpr long kVerified = 0;

Result<std::shared_ptr<const TlsLibrary>> open_library() noexcept {
  // The library is never closed, because it has handlers that run at the end of the process.
  void* const found = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (found == nullptr) {
    return Status::unavailable(std::string{"TLS needs OpenSSL 3, which cannot be opened: "} +
                               ::dlerror());
  }
  auto library = std::make_shared<TlsLibrary>();
#define ROSE_TLS_LOAD(name, answer, arguments)                                                \
  library->name = reinterpret_cast<answer(*) arguments>(::dlsym(found, #name));               \
  if (library->name == nullptr) {                                                             \
    return Status::unavailable(std::string{kLibrary} + " has no " #name ", which TLS needs"); \
  }
  ROSE_TLS_ENTRIES(ROSE_TLS_LOAD)
#undef ROSE_TLS_LOAD
  return std::shared_ptr<const TlsLibrary>{std::move(library)};
}

int int_of(std::size_t nbytes) noexcept {
  return static_cast<int>(std::min<std::size_t>(nbytes, std::numeric_limits<int>::max()));
}

bool is_address(const std::string& host) noexcept {
  std::array<unsigned char, sizeof(in6_addr)> address;
  return ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

}  // namespace

// ---- certificates

TlsContext::TlsContext(std::shared_ptr<const TlsLibrary> library, void* context,
                       TlsSide side) noexcept
    : library_{std::move(library)}, context_{context}, side_{side} {}

TlsContext::~TlsContext() { library_->SSL_CTX_free(context_); }

Result<std::shared_ptr<const TlsContext>> TlsContext::create(const TlsFiles& files,
                                                             TlsSide side) noexcept {
  auto library = open_library();
  if (!library.ok()) return library.status();
  void* const made = library.value()->SSL_CTX_new(library.value()->TLS_method());
  if (made == nullptr) return Status::out_of_memory("libssl cannot allocate a context");
  const std::shared_ptr<TlsContext> context{new TlsContext{library.take(), made, side}};
  ROSE_TRY(context->load(files));
  return std::shared_ptr<const TlsContext>{context};
}

Status TlsContext::load(const TlsFiles& files) noexcept {
  const TlsLibrary& tls = *library_;
  const auto refused = [&tls](const std::string& what) {
    return Status::invalid_argument(what + ": " + tls.reason());
  };
  tls.ERR_clear_error();
  if (tls.SSL_CTX_ctrl(context_, kCtrlSetMinVersion, kTls13, nullptr) != 1) {
    return Status::unavailable("this libssl does not support TLS 1.3: " + tls.reason());
  }
  tls.SSL_CTX_ctrl(context_, kCtrlMode, kModePartialWrite, nullptr);
  tls.SSL_CTX_set_num_tickets(context_, 0);  // sessions are never resumed
  if (tls.SSL_CTX_use_certificate_chain_file(context_, files.certificate.c_str()) != 1) {
    return refused("the certificate '" + files.certificate + "' cannot be read");
  }
  const void* const certificate = tls.SSL_CTX_get0_certificate(context_);
  if (tls.X509_cmp_current_time(tls.X509_get0_notAfter(certificate)) < 0) {
    return Status::invalid_argument("the certificate '" + files.certificate + "' has expired");
  }
  if (tls.X509_cmp_current_time(tls.X509_get0_notBefore(certificate)) > 0) {
    return Status::invalid_argument("the certificate '" + files.certificate + "' is not valid yet");
  }
  if (tls.SSL_CTX_use_PrivateKey_file(context_, files.key.c_str(), kFilePem) != 1) {
    return refused("the key '" + files.key + "' cannot be read, or belongs to another certificate");
  }
  if (tls.SSL_CTX_check_private_key(context_) != 1) {
    return refused("the key '" + files.key + "' does not belong to '" + files.certificate + "'");
  }
  if (tls.SSL_CTX_load_verify_locations(context_, files.authority.c_str(), nullptr) != 1) {
    return refused("the authority '" + files.authority + "' cannot be read");
  }
  tls.SSL_CTX_set_verify(context_, kVerifyPeerOrFail, nullptr);
  return {};
}

Result<std::unique_ptr<TlsSession>> TlsContext::open(int socket,
                                                     const std::string& host) const noexcept {
  const TlsLibrary& tls = *library_;
  tls.ERR_clear_error();
  void* const made = tls.SSL_new(context_);
  if (made == nullptr) return Status::out_of_memory("libssl cannot allocate a session");
  std::unique_ptr<TlsSession> session{new TlsSession{library_, made}};
  if (tls.SSL_set_fd(made, socket) != 1) {
    return Status::unavailable("libssl does not accept the socket: " + tls.reason());
  }
  if (side_ == TlsSide::kServer) {
    tls.SSL_set_accept_state(made);
    return session;
  }
  tls.SSL_set_connect_state(made);
  void* const rules = tls.SSL_get0_param(made);
  const int is_set = is_address(host)
                         ? tls.X509_VERIFY_PARAM_set1_ip_asc(rules, host.c_str())
                         : tls.X509_VERIFY_PARAM_set1_host(rules, host.c_str(), host.size());
  if (is_set != 1) {
    return Status::invalid_argument("'" + host + "' is not a name that a certificate can have");
  }
  return session;
}

// ---- one connection

TlsSession::TlsSession(std::shared_ptr<const TlsLibrary> library, void* session) noexcept
    : library_{std::move(library)}, session_{session} {}

TlsSession::~TlsSession() { library_->SSL_free(session_); }

Io TlsSession::handshake() noexcept {
  library_->ERR_clear_error();
  const int answer = library_->SSL_do_handshake(session_);
  return answer == 1 ? Io::kDone : outcome(answer);
}

IoResult TlsSession::read(std::span<std::byte> room) noexcept {
  library_->ERR_clear_error();
  const int answer = library_->SSL_read(session_, room.data(), int_of(room.size()));
  if (answer > 0) return {Io::kDone, static_cast<std::size_t>(answer)};
  return {outcome(answer), 0};
}

IoResult TlsSession::write(std::span<const std::byte> content) noexcept {
  library_->ERR_clear_error();
  const int answer = library_->SSL_write(session_, content.data(), int_of(content.size()));
  if (answer > 0) return {Io::kDone, static_cast<std::size_t>(answer)};
  return {outcome(answer), 0};
}

void TlsSession::shut_down() noexcept {
  if (is_broken_) return;
  library_->ERR_clear_error();
  library_->SSL_shutdown(session_);
  library_->ERR_clear_error();
}

Io TlsSession::outcome(int answer) noexcept {
  const int error = library_->SSL_get_error(session_, answer);
  if (error == kErrorWantRead) return Io::kWantRead;
  if (error == kErrorWantWrite) return Io::kWantWrite;
  is_broken_ = true;
  const long verdict = library_->SSL_get_verify_result(session_);
  if (verdict != kVerified) {
    failure_ = library_->X509_verify_cert_error_string(verdict);
  } else if (error == kErrorSsl) {
    failure_ = library_->reason();
  }
  library_->ERR_clear_error();
  return Io::kClosed;
}

}  // namespace rose::transfer
