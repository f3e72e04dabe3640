// Gets chunks from a server over several connections at once, in one thread of its own.
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
#include <thread>
#include <vector>

#include "base/clock.h"
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
  std::shared_ptr<const TlsContext> tls{};  // null: in the clear
  Nanoseconds timeout_ns{10'000'000'000};   // without a byte, before a connection is given up
  std::uint64_t bytes_per_s{0};             // over all streams; 0: as fast as it comes
};

struct ChunkClientStats {
  std::uint64_t received_bytes{0};  // headers included
  std::uint64_t losses{0};          // connections that broke
  std::uint64_t greeted{0};         // connections on which a server answered
};

// fetch() by any thread; next() by one at a time; cancel(), close() and stats() by any. Memory is
// the caller's: it has asked for what is on its way, so it bounds that by asking in portions.
//
// 1. Each want of fetch() has one arrival, or is ended by one error of next(), or by cancel().
// 2. A frame arrives whole or not at all; where a connection breaks, the rest is asked for on
//    another one. When none is left, they are opened once more; then it is an error.
// 3. After the arrival, the error, or cancel() or close() have returned, a room is not touched.
// 4. Every wait ends: a stream with asks on which no byte moves for timeout_ns, or on which a frame
//    takes longer than that and its bytes at 16 KiB/s, is lost, its asks go to the others, and it
//    is opened again only once something came.
class ChunkClient {
 public:
  // Resolves the host and starts the thread; connects when something is asked for.
  static Result<std::unique_ptr<ChunkClient>> create(const ChunkClientConfig& config,
                                                     std::shared_ptr<const Clock> clock) noexcept;
  ChunkClient(const ChunkClient&) = delete;
  ChunkClient& operator=(const ChunkClient&) = delete;
  ~ChunkClient();

  // Asks for chunks, besides those that are on their way. InvalidArgument, and nothing is asked
  // for, when a key or room is none or a key is on its way; Unavailable once it is closed.
  Status fetch(std::vector<Want> wants) noexcept;
  // What came, in whatever order; nothing when nothing is on its way any more.
  // DeadlineExceeded when no byte moved for `timeout_ns`, or by the server's fault: then, as after
  // Unavailable and Corrupt, all that was on its way is given up. Of the caller's own impatience
  // nothing is given up.
  Result<std::optional<Arrival>> next(Nanoseconds timeout_ns) noexcept;
  // Gives up all that is on its way and what came and was not taken; who waits in next() is told
  // Unavailable. It can be used on.
  void cancel() noexcept;
  // Cancels for good, hangs up and joins the thread; once is enough.
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

  // Of the thread.
  std::vector<ChunkStream> streams_;
  // By stream, after it was lost: when it may be opened again, and how many chunks had come. Only
  // if more came since: connections that bring nothing are not made for ever.
  struct Rest {
    Nanoseconds until_ns{0};
    std::uint64_t arrivals{0};
    bool is_over{true};
  };
  std::vector<Rest> rests_;
  std::uint64_t arrivals_count_{0};
  std::deque<Want> pending_;       // asked for on no stream
  std::vector<Arrival> arrivals_;  // of this turn
  ChunkPace pace_;
  bool may_open_again_{true};  // all are lost: there is one more try
  Status last_loss_;

  std::mutex mutex_;  // guards the next
  std::condition_variable changed_;
  std::vector<Want> asked_;
  std::set<ChunkKey> outstanding_;  // asked for, and not handed out, ended or given up
  std::deque<Arrival> arrived_;
  Status failure_;
  std::uint64_t cancels_wanted_{0};
  std::uint64_t cancels_done_{0};
  bool is_closed_{false};
  bool is_over_{false};  // the thread touches no room any more

  std::atomic<std::uint64_t> received_bytes_{0};
  std::atomic<std::uint64_t> losses_{0};
  std::atomic<std::uint64_t> greeted_{0};
  std::mutex closing_;  // one joins
  std::thread thread_;
};

}  // namespace rose::transfer
