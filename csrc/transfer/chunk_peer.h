// One receiver of a chunk server: its requests and their answers.
#pragma once

#include <algorithm>
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
  Nanoseconds greeting_ns;  // longest time from the connection to a valid greeting
  Nanoseconds idle_ns;      // longest time without a request
  Nanoseconds send_ns;      // longest time in which the peer accepts no byte of an answer
  Nanoseconds park_ns;      // longest wait of a request for a missing chunk; 0: no wait
};

// HANDSHAKE -> GREETING -> SERVING -> CLOSED, or from any state to CLOSED: an error of a peer ends
// only its connection, and a peer without the token learns nothing.
//
// Only the server's thread uses it. No call blocks.
//
// A request is open once it was read, until it is answered or given up. Requests that are not read
// wait in the socket. Invariants: at most kAsksMax requests are open, at most kParkedMax of them
// wait for missing chunks, and nothing is read while kOutputBytesMax of frames wait to be sent. So
// a frame that is made for a request is made soon before it is sent, and few exist at a time.
class ChunkPeer {
 public:
  static constexpr std::size_t kAsksMax = 256;
  static constexpr std::size_t kParkedMax = 8;
  static constexpr std::size_t kOutputBytesMax = 4 << 20;

  // Result of `serve`.
  struct Moved {
    std::size_t sent{0};     // bytes on the wire, headers included
    bool has_more{false};    // call again: more can be read or sent
    bool is_greeted{false};  // the peer showed the token in this call
  };

  ChunkPeer(ChunkChannel channel, ChunkShelf& shelf, const Token& token, const PeerLimits& limits,
            Nanoseconds now_ns) noexcept;
  ChunkPeer(const ChunkPeer&) = delete;
  ChunkPeer& operator=(const ChunkPeer&) = delete;
  ~ChunkPeer();

  // Call this when the socket may accept more bytes, or have more to read.
  void wake() noexcept { can_read_ = can_write_ = true; }
  // Reads as much as possible, and sends as much as possible, but at most `allowance` bytes.
  Moved serve(Nanoseconds now_ns, std::size_t allowance) noexcept;
  // Answers each request whose chunk has arrived, was refused, or is overdue.
  void settle(Nanoseconds now_ns) noexcept;
  // Time at which the peer must be checked even without an event.
  Nanoseconds deadline_ns() const noexcept;
  // Closes the connection after its deadline. Call settle() before, which answers parked requests.
  void expire(Nanoseconds now_ns) noexcept;

  bool is_closed() const noexcept { return state_ == State::kClosed; }
  Nanoseconds greet_by_ns() const noexcept { return greet_by_ns_; }
  // True if the peer has shown the token.
  bool was_greeted() const noexcept { return was_greeted_; }
  bool has_output() const noexcept { return !output_.empty(); }
  // True if the peer can receive output as soon as the pace allows.
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
  // Time at which the connection is closed because the peer is too slow.
  Nanoseconds over_ns() const noexcept;
  std::size_t asks() const noexcept { return output_.size() + parked_.size(); }
  // Number of requests that may be read now.
  std::size_t room() const noexcept {
    if (output_bytes_ >= kOutputBytesMax || asks() >= kAsksMax) return 0;
    return std::min(kAsksMax - asks(), kParkedMax - parked_.size());
  }
  bool may_read() const noexcept {
    return can_read_ && (state_ == State::kGreeting || (state_ == State::kServing && room() > 0));
  }

  ChunkChannel channel_;
  ChunkShelf& shelf_;
  const Token& token_;
  const PeerLimits& limits_;
  State state_{State::kHandshake};
  bool was_greeted_{false};
  bool can_read_{true};
  bool can_write_{true};
  // Bytes of incomplete messages.
  std::array<std::byte, kAsksMax * kAskBytes> input_;
  std::size_t input_bytes_{0};
  std::deque<Outgoing> output_;
  std::size_t output_at_{0};                     // sent bytes of the first output
  std::size_t output_bytes_{0};                  // total size of the frames in output_
  std::multimap<ChunkKey, Nanoseconds> parked_;  // parked requests and their deadlines
  const Nanoseconds greet_by_ns_;
  Nanoseconds heard_ns_;                 // time of the last request, or of the last byte sent
  std::optional<Nanoseconds> stuck_ns_;  // time since which the socket accepts nothing
};

}  // namespace rose::transfer
