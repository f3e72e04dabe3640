// Both ends of a chunk connection by hand: a plain socket, and a server that follows a script.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/memfd.h"
#include "check.h"
#include "transfer/chunk_channel.h"
#include "transfer/chunk_shelf.h"
#include "transfer/chunk_stream.h"
#include "transfer/chunk_wire.h"

namespace rose::test {

using Bytes = std::vector<std::byte>;

// A bound for hangs.
inline constexpr int kLongS = 200;
inline constexpr Nanoseconds kLongNs = Nanoseconds{kLongS} * 1'000'000'000;

inline Bytes frame_of(std::size_t nbytes, unsigned seed) {
  Bytes content(nbytes);
  std::uint32_t state = seed * 2654435761U + 1;
  for (std::byte& one : content) {
    state = state * 1664525U + 1013904223U;
    one = static_cast<std::byte>(state >> 24);
  }
  return content;
}

inline transfer::Token token_of(unsigned first) {
  transfer::Token token;
  for (std::size_t i = 0; i < token.size(); ++i) token[i] = static_cast<std::byte>(first + i);
  return token;
}

inline transfer::Frame shared(Bytes content) {
  auto owner = std::make_shared<const Bytes>(std::move(content));
  return {{owner->data(), owner->size()}, owner};
}

template <std::size_t N>
Bytes bytes_of(const std::array<std::byte, N>& content) {
  return {content.begin(), content.end()};
}

inline Bytes operator+(Bytes one, const Bytes& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

// A blocking socket with a timeout.
class Wire {
 public:
  explicit Wire(FileDescriptor socket) : socket_{std::move(socket)} {
    const timeval longest{kLongS, 0};
    for (const int what : {SO_RCVTIMEO, SO_SNDTIMEO}) {
      CHECK_EQ(::setsockopt(get(), SOL_SOCKET, what, &longest, sizeof(longest)), 0);
    }
  }

  static Wire connect(std::uint16_t port) {
    FileDescriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return Wire{std::move(socket)};
  }
  static Wire greet(std::uint16_t port, const transfer::Token& token) {
    Wire wire = connect(port);
    wire.send(bytes_of(transfer::pack(transfer::Greeting{token, 0})));
    CHECK(wire.receive(transfer::kHelloBytes) == bytes_of(transfer::pack_hello()));
    return wire;
  }

  int get() const { return socket_.get(); }
  // False if the other side closed.
  bool send(const Bytes& content) {
    std::size_t sent = 0;
    while (sent < content.size()) {
      const ssize_t one = ::send(get(), content.data() + sent, content.size() - sent, MSG_NOSIGNAL);
      if (one <= 0) return false;
      sent += static_cast<std::size_t>(one);
    }
    return true;
  }
  // Everything until the other side closes, at most `nbytes`.
  Bytes receive(std::size_t nbytes) {
    Bytes content(nbytes);
    std::size_t got = 0;
    while (got < nbytes) {
      const ssize_t one = ::recv(get(), content.data() + got, nbytes - got, 0);
      if (one <= 0) break;
      got += static_cast<std::size_t>(one);
    }
    content.resize(got);
    return content;
  }
  void ask(const transfer::ChunkKey& key) { send(bytes_of(transfer::pack(key))); }
  transfer::ChunkAnswer answer() {
    const Bytes content = receive(transfer::kAnswerBytes);
    CHECK_EQ(content.size(), transfer::kAnswerBytes);
    const auto read = transfer::read_answer(
        std::span<const std::byte, transfer::kAnswerBytes>{content.data(), content.size()});
    CHECK(read.has_value());
    return *read;
  }
  // Discards the available bytes.
  std::size_t drain() {
    std::size_t all = 0;
    Bytes room(1 << 16);
    while (true) {
      const ssize_t one = ::recv(get(), room.data(), room.size(), MSG_DONTWAIT);
      if (one <= 0) return all;
      all += static_cast<std::size_t>(one);
    }
  }
  bool is_hung_up() { return receive(1).empty(); }
  void hang_up() { socket_ = FileDescriptor{}; }
  void finish() { ::shutdown(get(), SHUT_WR); }

 private:
  FileDescriptor socket_;
};

// Accepts connections, and serves each by a function of its number. Joined at the end.
class ScriptedServer {
 public:
  using Script = std::function<void(int, Wire&)>;

  explicit ScriptedServer(Script script) : script_{std::move(script)} {
    auto addresses = transfer::resolve("127.0.0.1", 0);
    listener_ = FileDescriptor{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    const transfer::Address& address = addresses.value().front();
    CHECK_EQ(
        ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address.bytes), address.size),
        0);
    CHECK_EQ(::listen(listener_.get(), 64), 0);
    port_ = transfer::port_of(listener_).value();
    thread_ = std::thread{[this] { run(); }};
  }
  ~ScriptedServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    for (std::thread& one : connections_) one.join();
  }
  std::uint16_t port() const { return port_; }
  int accepted() const { return accepted_.load(); }

  // Answers correctly until the other side closes.
  static void serve_well(Wire& wire, const std::function<Bytes(const transfer::ChunkKey&)>& frame) {
    if (!greet(wire)) return;
    while (true) {
      const auto key = next_ask(wire);
      if (!key) return;
      const Bytes content = frame(*key);
      const auto size = static_cast<std::uint32_t>(content.size());
      if (!wire.send(bytes_of(transfer::pack(transfer::ChunkAnswer{*key, size})) + content)) return;
    }
  }
  static bool greet(Wire& wire) {
    if (wire.receive(transfer::kGreetingBytes).size() < transfer::kGreetingBytes) return false;
    return wire.send(bytes_of(transfer::pack_hello()));
  }
  static std::optional<transfer::ChunkKey> next_ask(Wire& wire) {
    const Bytes said = wire.receive(transfer::kAskBytes);
    if (said.size() < transfer::kAskBytes) return std::nullopt;
    return transfer::read_ask(
        std::span<const std::byte, transfer::kAskBytes>{said.data(), said.size()});
  }

 private:
  void run() {
    while (true) {
      FileDescriptor socket{::accept(listener_.get(), nullptr, nullptr)};
      if (!socket.is_open()) return;
      const int number = accepted_.fetch_add(1);
      connections_.emplace_back([this, number, wire = Wire{std::move(socket)}]() mutable {
        script_(number, wire);
        wire.hang_up();
      });
    }
  }

  Script script_;
  FileDescriptor listener_;
  std::uint16_t port_{0};
  std::atomic<int> accepted_{0};
  std::vector<std::thread> connections_;
  std::thread thread_;
};

}  // namespace rose::test
