// One connection of a client to a chunk server, with its requests and arrivals.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transfer/chunk_channel.h"
#include "transfer/chunk_wire.h"

namespace rose::transfer {

// The target of a frame: borrowed memory of exactly the frame's size. While a client has a room,
// nobody else may read or write its bytes.
struct Room {
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;
};

struct Want {
  ChunkKey key;
  Room room;
};

// The answer to a Want: the frame is in the room, or the server does not keep it.
struct Arrival {
  ChunkKey key;
  bool is_kept{false};
  Room room;
};

// RESTING -> CONNECTING -> HANDSHAKE -> GREETING -> SERVING, and from any state to RESTING.
//
// Only the client's thread uses it. No call blocks.
//
// Invariant: a room is written only between ask() and either its arrival or take_back().
class ChunkStream {
 public:
  // Smallest accepted rate. A server that sends a byte now and then would otherwise never be late.
  static constexpr Nanoseconds kLeastBytesPerS = 16 << 10;

  struct Server {
    std::string host;
    std::vector<Address> addresses;
    Token token{};
    std::shared_ptr<const TlsContext> tls{};  // null: without TLS
    Nanoseconds timeout_ns{0};
  };

  ChunkStream(const Server& server, std::uint32_t index) noexcept
      : server_{server}, index_{index} {}

  bool is_resting() const noexcept { return state_ == State::kResting; }
  bool is_serving() const noexcept { return state_ == State::kServing; }
  bool has_asks() const noexcept { return !rooms_.empty(); }
  // True if a request for `nbytes` fits in the window of open requests. The window is bounded, but
  // large enough to keep a link with a long delay busy.
  bool takes(std::size_t nbytes) const noexcept;
  int get() const noexcept { return channel_->get(); }
  short events(bool may_read) const noexcept;

  Status open(Nanoseconds now_ns) noexcept;
  void ask(Want want, Nanoseconds now_ns) noexcept;
  // Continues the connection as far as possible, reads at most `allowance` bytes and returns their
  // number. An error ends the stream: Corrupt for a violation of the protocol, else Unavailable.
  Result<std::size_t> serve(Nanoseconds now_ns, std::size_t allowance,
                            std::vector<Arrival>& arrivals) noexcept;
  // Time at which the stream is lost: no byte moved for timeout_ns, or the current frame took
  // longer than timeout_ns plus the time of its bytes at kLeastBytesPerS. Empty while no answer is
  // due.
  std::optional<Nanoseconds> late_ns() const noexcept;
  // Restarts both times of late_ns(). The client calls this while its own pace stops the reading,
  // because then the server is not at fault.
  void excuse(Nanoseconds now_ns) noexcept;
  // The error of a stream that is lost because of its deadline.
  Status lateness() const noexcept;
  // Closes the connection. Returns the requests without an arrival.
  std::vector<Want> take_back() noexcept;

 private:
  enum class State { kResting, kConnecting, kHandshake, kGreeting, kServing };

  Status connect(Nanoseconds now_ns) noexcept;
  Status finish_connect(Nanoseconds now_ns) noexcept;
  Status shake_hands(Nanoseconds now_ns) noexcept;
  Status flush(Nanoseconds now_ns) noexcept;
  Result<std::size_t> read(Nanoseconds now_ns, std::size_t allowance,
                           std::vector<Arrival>& arrivals) noexcept;
  std::span<std::byte> target() noexcept;
  Status advance(std::vector<Arrival>& arrivals) noexcept;
  Status take_answer(std::vector<Arrival>& arrivals) noexcept;
  Nanoseconds slow_ns() const noexcept;
  Status lost() const noexcept;
  std::string name() const;

  const Server& server_;
  const std::uint32_t index_;
  State state_{State::kResting};
  std::size_t address_{0};  // index of the server's address in use
  std::optional<ChunkChannel> channel_;
  bool wants_write_{false};  // unsent output, or the handshake waits to write
  Nanoseconds moved_ns_{0};

  std::vector<std::byte> output_;
  std::size_t output_at_{0};
  std::map<ChunkKey, Room> rooms_;
  std::size_t asked_bytes_{0};  // total size of rooms_

  std::array<std::byte, kAnswerBytes> header_;
  std::size_t got_{0};               // bytes received of the current header or frame
  std::optional<ChunkKey> current_;  // key of the current frame
  // Size and start time of the header or frame in progress; 0 bytes: none is in progress.
  std::size_t begun_bytes_{0};
  Nanoseconds begun_ns_{0};
};

}  // namespace rose::transfer
