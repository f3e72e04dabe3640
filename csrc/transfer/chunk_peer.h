// One receiver of a chunk server: its requests and their answers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>

#include "base/clock.h"
#include "transfer/chunk_channel.h"
#include "transfer/chunk_shelf.h"
#include "transfer/chunk_wire.h"

namespace rose::transfer {

struct PeerLimits {
  Nanoseconds greeting_ns;  // from the connection to a valid greeting
  Nanoseconds idle_ns;      // without a request
  Nanoseconds send_ns;      // without a byte accepted of the output for it
  Nanoseconds park_ns;      // for a missing chunk; 0: not waited for
};

// HANDSHAKE -> GREETING -> SERVING -> CLOSED, or from any state to CLOSED: an error of a peer ends
// only its connection, and a stranger learns nothing.
//
// The server's thread alone. No call blocks.
//
// Invariant: at most kAsksMax requests are read and neither answered nor given up; beyond that
// nothing is read from the peer.
class ChunkPeer {
 public:
  static constexpr std::size_t kAsksMax = 256;

  // Result of `serve`.
  struct Moved {
    std::size_t sent{0};     // bytes on the wire, headers included
    bool has_more{false};    // call again: it stopped at the allowance or at the share of a turn
    bool is_greeted{false};  // it has just shown the token
  };

  ChunkPeer(ChunkChannel channel, ChunkShelf& shelf, const Token& token, const PeerLimits& limits,
            Nanoseconds now_ns) noexcept;
  ChunkPeer(const ChunkPeer&) = delete;
  ChunkPeer& operator=(const ChunkPeer&) = delete;
  ~ChunkPeer();

  // Called when the socket may accept or have more bytes.
  void wake() noexcept { can_read_ = can_write_ = true; }
  // Reads and sends as much as possible, at most `allowance` bytes.
  Moved serve(Nanoseconds now_ns, std::size_t allowance) noexcept;
  // Answers each request whose chunk has arrived, was refused, or is overdue.
  void settle(Nanoseconds now_ns) noexcept;
  // Time at which it must be checked even without an event.
  Nanoseconds deadline_ns() const noexcept;
  // Closes it after its deadline; `settle` answers parked requests first.
  void expire(Nanoseconds now_ns) noexcept;

  bool is_closed() const noexcept { return state_ == State::kClosed; }
  Nanoseconds greet_by_ns() const noexcept { return greet_by_ns_; }
  // Whether it has shown the token.
  bool was_greeted() const noexcept { return was_greeted_; }
  bool has_output() const noexcept { return !output_.empty(); }
  // Whether it can receive output as soon as the pace allows.
  bool is_hungry() const noexcept { return can_write_ && has_output(); }

 private:
  enum class State { kHandshake, kGreeting, kServing, kClosed };
  static constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

  struct Outgoing {
    std::array<std::byte, kAnswerBytes> header{};
    std::size_t header_bytes{0};
    ChunkKey key;
    Frame frame;  // empty: nothing follows the header
    std::size_t size() const noexcept { return header_bytes + frame.bytes.size(); }
  };

  void advance(Nanoseconds now_ns) noexcept;
  void shake_hands() noexcept;
  void read(Nanoseconds now_ns) noexcept;
  void take_greeting(Nanoseconds now_ns) noexcept;
  bool take_asks(Nanoseconds now_ns) noexcept;
  void answer(const ChunkKey& key, const ShelfAnswer& found) noexcept;
  std::size_t write(Nanoseconds now_ns, std::size_t allowance) noexcept;
  void drop_sent(std::size_t nbytes) noexcept;
  // Time at which it is closed for being too slow.
  Nanoseconds over_ns() const noexcept;
  std::size_t asks() const noexcept { return output_.size() + parked_.size(); }
  bool may_read() const noexcept {
    return can_read_ &&
           (state_ == State::kGreeting || (state_ == State::kServing && asks() < kAsksMax));
  }

  ChunkChannel channel_;
  ChunkShelf& shelf_;
  const Token& token_;
  const PeerLimits& limits_;
  State state_{State::kHandshake};
  bool was_greeted_{false};
  bool can_read_{true};
  bool can_write_{true};
  // Bytes read of an incomplete message.
  std::array<std::byte, kAsksMax * kAskBytes> input_;
  std::size_t input_bytes_{0};
  std::deque<Outgoing> output_;
  std::size_t output_at_{0};                     // sent bytes of the first output
  std::multimap<ChunkKey, Nanoseconds> parked_;  // deadline of each
  const Nanoseconds greet_by_ns_;
  Nanoseconds heard_ns_;                 // the last request, or the last byte of an answer
  std::optional<Nanoseconds> stuck_ns_;  // since when the socket accepts nothing
};

}  // namespace rose::transfer
