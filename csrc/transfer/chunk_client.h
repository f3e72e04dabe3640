// Fetches chunks from a server over several connections, in one thread of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/owned_thread.h"
#include "base/process.h"
#include "base/status.h"
#include "transfer/chunk_pace.h"
#include "transfer/chunk_stream.h"
#include "transfer/chunk_wire.h"
#include "transfer/tls.h"

namespace rose::transfer {

struct ChunkClientConfig {
  std::string host{};
  std::uint16_t port{0};
  Token token{};
  std::uint32_t streams{4};
  std::shared_ptr<const TlsContext> tls{};  // null: without TLS
  Nanoseconds timeout_ns{10'000'000'000};   // a connection without a byte for this long is lost
  std::uint64_t bytes_per_s{0};             // over all streams; 0: unlimited
};

struct ChunkClientStats {
  std::uint64_t received_bytes{0};  // headers included
  std::uint64_t losses{0};          // broken connections
  std::uint64_t greeted{0};         // connections answered by a server
};

// Any thread may call fetch(), cancel(), close() and stats(); one thread at a time may call next().
// The caller provides the memory, and limits it by fetching in portions.
//
// 1. Each Want passed to fetch() ends in exactly one way: with its arrival, with an error of
//    next(), or with cancel() or close().
// 2. A frame arrives whole or not at all; when a connection breaks, its missing frames are
//    requested on another one. When no connection is left, all are opened once more; losing
//    them all again before a frame has arrived is an error.
// 3. After a Want has ended, the client does not touch its room, the memory for the frame.
// 4. Every wait ends: a stream with requests is lost if no byte moves for timeout_ns, or if a frame
//    takes longer than timeout_ns plus the time of its bytes at 16 KiB/s. The requests of a lost
//    stream go to the other streams. A lost stream is opened again only after another chunk has
//    arrived.
class ChunkClient {
 public:
  // Resolves the host and starts the thread; the first fetch() connects.
  static Result<std::unique_ptr<ChunkClient>> create(const ChunkClientConfig& config,
                                                     std::shared_ptr<const Clock> clock) noexcept;
  ChunkClient(const ChunkClient&) = delete;
  ChunkClient& operator=(const ChunkClient&) = delete;
  ~ChunkClient();

  // Requests further chunks. InvalidArgument, with nothing requested, for an invalid key or room,
  // or for a key already requested; Unavailable after close().
  Status fetch(std::vector<Want> wants) noexcept;
  // Returns the next arrival, in any order; nothing if no request is open. After Unavailable,
  // Corrupt, or a DeadlineExceeded because the server was too slow, all requests are given up.
  // After a DeadlineExceeded because `timeout_ns` passed, no request is given up.
  Result<std::optional<Arrival>> next(Nanoseconds timeout_ns) noexcept;
  // Gives up all requests and untaken arrivals; a waiting next() returns Unavailable. The client
  // remains usable.
  void cancel() noexcept;
  // Cancels for good, closes the connections and joins the thread. May be called repeatedly; has
  // no effect in a forked child.
  void close() noexcept;
  ChunkClientStats stats() const noexcept;

 private:
  ChunkClient(const ChunkClientConfig& config, ChunkStream::Server server,
              std::shared_ptr<const Clock> clock, EventFd bell) noexcept;

  void run() noexcept;
  bool take_orders() noexcept;
  void open_streams(Nanoseconds now_ns) noexcept;
  void open(std::size_t index, Nanoseconds now_ns) noexcept;
  void assign(Nanoseconds now_ns) noexcept;
  bool serve(Nanoseconds now_ns) noexcept;
  void lose(std::size_t index, Status why, Nanoseconds now_ns) noexcept;
  bool end_if_hopeless() noexcept;
  bool may_open(std::size_t index, Nanoseconds now_ns) const noexcept;
  void forgive() noexcept;
  void hand_over() noexcept;
  void give_up(Status why) noexcept;
  void drop_everything() noexcept;
  void sleep(bool is_hurried) noexcept;
  bool has_work() const noexcept;

  const ChunkStream::Server server_;
  const std::shared_ptr<const Clock> clock_;
  const EventFd bell_;

  // Used only by the client's thread.
  std::vector<ChunkStream> streams_;
  // Per lost stream: the time from which the stream may be opened again, and the number of arrivals
  // at its loss. The stream is opened only after further arrivals, so that a useless connection is
  // not opened for ever.
  struct Rest {
    Nanoseconds until_ns{0};
    std::uint64_t arrivals{0};
    bool is_over{true};
  };
  std::vector<Rest> rests_;
  std::uint64_t arrivals_count_{0};
  std::deque<Want> pending_;       // requested by the caller, but not yet on a stream
  std::vector<Arrival> arrivals_;  // arrivals of the current pass of run()
  ChunkPace pace_;
  bool may_open_again_{true};  // all streams may be opened once more when all are lost
  Status last_loss_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Want> asked_;
  std::set<ChunkKey> outstanding_;  // requested, and not delivered, failed or given up
  std::deque<Arrival> arrived_;
  Status failure_;
  std::uint64_t cancels_wanted_{0};
  std::uint64_t cancels_done_{0};
  bool is_closed_{false};
  bool is_over_{false};  // the thread touches no more rooms

  std::atomic<std::uint64_t> received_bytes_{0};
  std::atomic<std::uint64_t> losses_{0};
  std::atomic<std::uint64_t> greeted_{0};
  const Owner owner_;
  OwnedThread thread_;  // last, because it uses all of the above
};

}  // namespace rose::transfer
