// One of a client's connections to a chunk server: what was asked on it, and what came.
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

// Where a frame goes: memory of somebody else, of exactly the frame's size. While it is with a
// client, nobody else reads or writes it.
struct Room {
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;
};

struct Want {
  ChunkKey key;
  Room room;
};

// What came of a want: the frame in its room, or that it is not kept.
struct Arrival {
  ChunkKey key;
  bool is_kept{false};
  Room room;
};

// RESTING -> CONNECTING -> HANDSHAKE -> GREETING -> SERVING, and from anywhere back to RESTING.
//
// The client's thread alone. No call blocks.
//
// Invariant: a room is written only between ask() and the arrival, or take_back().
class ChunkStream {
 public:
  // Of a server that gives a byte now and then nobody would ever get a chunk.
  static constexpr Nanoseconds kLeastBytesPerS = 16 << 10;

  struct Server {
    std::string host;
    std::vector<Address> addresses;
    Token token{};
    std::shared_ptr<const TlsContext> tls{};  // null: in the clear
    Nanoseconds timeout_ns{0};
  };

  ChunkStream(const Server& server, std::uint32_t index) noexcept
      : server_{server}, index_{index} {}

  bool is_resting() const noexcept { return state_ == State::kResting; }
  bool is_serving() const noexcept { return state_ == State::kServing; }
  bool has_asks() const noexcept { return !rooms_.empty(); }
  // Whether another ask fits into the window: enough that a long line is full, and bounded.
  bool takes(std::size_t nbytes) const noexcept;
  int get() const noexcept { return channel_->get(); }
  short events(bool may_read) const noexcept;

  Status open(Nanoseconds now_ns) noexcept;
  void ask(Want want, Nanoseconds now_ns) noexcept;
  // Goes on as far as it can, reads at most `allowance` bytes and returns how many. An error is the
  // stream's end: Corrupt when the other side speaks something else, else Unavailable.
  Result<std::size_t> serve(Nanoseconds now_ns, std::size_t allowance,
                            std::vector<Arrival>& arrivals) noexcept;
  // When it is late: nothing moved for the timeout, or what began to come takes longer than that
  // and its bytes at kLeastBytesPerS. Nothing while nothing is due.
  std::optional<Nanoseconds> late_ns() const noexcept;
  // It was not let read: what did not move is not the server's fault.
  void excuse(Nanoseconds now_ns) noexcept;
  // What being late means at this point.
  Status lateness() const noexcept;
  // Hangs up. Returns what was asked and has not come.
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
  std::size_t address_{0};  // which one it tries
  std::optional<ChunkChannel> channel_;
  bool wants_write_{false};  // the socket took less than there is, or the handshake waits for it
  Nanoseconds moved_ns_{0};

  std::vector<std::byte> output_;
  std::size_t output_at_{0};
  std::map<ChunkKey, Room> rooms_;
  std::size_t asked_bytes_{0};  // of the rooms

  std::array<std::byte, kAnswerBytes> header_;
  std::size_t got_{0};               // of the header, or of the frame
  std::optional<ChunkKey> current_;  // whose frame comes
  // Of the header or frame that has begun: what was to come, and when. No bytes: none has.
  std::size_t begun_bytes_{0};
  Nanoseconds begun_ns_{0};
};

}  // namespace rose::transfer
