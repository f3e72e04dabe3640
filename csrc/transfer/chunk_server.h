// Sends the chunks of a shelf to receivers over TCP, in one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/memfd.h"
#include "base/owned_thread.h"
#include "base/process.h"
#include "base/status.h"
#include "transfer/chunk_pace.h"
#include "transfer/chunk_peer.h"
#include "transfer/chunk_shelf.h"
#include "transfer/chunk_wire.h"
#include "transfer/tls.h"

namespace rose::transfer {

struct ChunkServerConfig {
  std::string host{};  // an address of this machine
  std::uint16_t port{0};
  Token token{};
  std::shared_ptr<const TlsContext> tls{};  // null: without TLS
  std::uint64_t bytes_per_s{0};             // to all receivers together; 0: unlimited
  std::uint64_t burst_bytes{1 << 20};
  std::uint32_t connections_max{64};
  PeerLimits limits{.greeting_ns = 5'000'000'000,
                    .idle_ns = 60'000'000'000,
                    .send_ns = 30'000'000'000,
                    .park_ns = 0};
};

struct ChunkServerStats {
  std::uint64_t wire_bytes{0};   // sent, including headers, excluding TLS overhead
  std::uint64_t greeted{0};      // connections that showed the token
  std::uint64_t turned_away{0};  // connections without the token in time, or above connections_max
  std::uint32_t connections{0};  // current number
  // Longest of the shortest round trips of the last connections, measured once a second.
  std::uint32_t longest_rtt_us{0};
};

// Call create(), then start(); a test without a thread calls turn() instead. close() and the
// destructor stop and join the server's thread. Any thread may call close(), shelf(), set_pace()
// and stats() at any time. In a forked child close() has no effect.
//
// 1. All receivers together get at most rate * time + burst bytes of frames and headers.
// 2. Receivers take turns, so none waits for a slow one.
// 3. A receiver that accepts nothing for send_ns is dropped; the others go on.
// 4. When connections_max are in use, a connection that has not shown the token is closed for a new
//    one.
// 5. Memory per connection is bounded, and no allocation depends on a size that a peer sent.
class ChunkServer {
 public:
  // A smaller burst cannot contain one TLS record.
  static constexpr std::uint64_t kBurstBytesMin = 16 << 10;

  // InvalidArgument for an invalid limit, Unavailable if it cannot listen on the port.
  static Result<std::unique_ptr<ChunkServer>> create(const ChunkServerConfig& config,
                                                     std::shared_ptr<const Clock> clock) noexcept;
  ChunkServer(const ChunkServer&) = delete;
  ChunkServer& operator=(const ChunkServer&) = delete;
  ~ChunkServer();

  Status start() noexcept;
  void close() noexcept;
  // Waits at most `wait_ns` until a connection is ready, then serves all connections once.
  void turn(Nanoseconds wait_ns) noexcept;

  std::uint16_t port() const noexcept { return port_; }
  ChunkShelf& shelf() noexcept { return shelf_; }
  // InvalidArgument if the burst is too small or too large.
  Status set_pace(std::uint64_t bytes_per_s, std::uint64_t burst_bytes) noexcept;
  ChunkServerStats stats() const noexcept;

 private:
  ChunkServer(const ChunkServerConfig& config, std::shared_ptr<const Clock> clock, EventFd bell,
              FileDescriptor listener, FileDescriptor epoll, std::uint16_t port) noexcept;

  void run() noexcept;
  Status watch(int fd, std::uint32_t events) noexcept;
  Nanoseconds longest_wait(Nanoseconds most_ns) noexcept;
  void accept(Nanoseconds now_ns) noexcept;
  bool has_made_room() noexcept;
  void rest_listener(Nanoseconds now_ns) noexcept;
  void admit(FileDescriptor socket, Nanoseconds now_ns) noexcept;
  void take_pace(Nanoseconds now_ns) noexcept;
  void serve(Nanoseconds now_ns) noexcept;
  void measure(Nanoseconds now_ns) noexcept;
  void drop_closed() noexcept;

  const Token token_;
  const std::shared_ptr<const TlsContext> tls_;
  const PeerLimits limits_;
  const std::uint32_t connections_max_;
  const std::shared_ptr<const Clock> clock_;
  const FileDescriptor listener_;
  const FileDescriptor epoll_;
  const std::uint16_t port_;
  ChunkShelf shelf_;

  // Used only by the server's thread.
  std::map<int, std::unique_ptr<ChunkPeer>> peers_;  // by descriptor
  int served_last_{-1};
  bool has_more_{false};      // a peer can be served at once
  bool is_paced_out_{false};  // a peer waits for the pace
  Nanoseconds measured_ns_{0};
  ChunkPace pace_;
  std::optional<Nanoseconds> listens_at_ns_;  // time at which a paused listener continues

  struct PaceOrder {
    std::uint64_t bytes_per_s;
    std::uint64_t burst_bytes;
  };
  mutable std::mutex orders_;  // guards the members below
  std::optional<PaceOrder> order_;

  std::atomic<bool> is_closing_{false};
  std::atomic<std::uint64_t> wire_bytes_{0};
  std::atomic<std::uint64_t> greeted_{0};
  std::atomic<std::uint64_t> turned_away_{0};
  std::atomic<std::uint32_t> connections_{0};
  std::atomic<std::uint32_t> longest_rtt_us_{0};
  const Owner owner_;
  OwnedThread thread_;  // last, because it uses all of the above
};

}  // namespace rose::transfer
