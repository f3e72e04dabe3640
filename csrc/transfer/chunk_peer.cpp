#include "transfer/chunk_peer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rose::transfer {

namespace {

// Maximum parts in one call to the socket, so that several small frames are sent together.
constexpr std::size_t kSocketPartsMax = 32;

}  // namespace

ChunkPeer::ChunkPeer(ChunkChannel channel, ChunkShelf& shelf, const Token& token,
                     const PeerLimits& limits, Nanoseconds now_ns) noexcept
    : channel_{std::move(channel)},
      shelf_{shelf},
      token_{token},
      limits_{limits},
      greet_by_ns_{now_ns + limits.greeting_ns},
      heard_ns_{now_ns} {}

ChunkPeer::~ChunkPeer() {
  for (const auto& [key, until_ns] : parked_) shelf_.leave(key);
}

ChunkPeer::Moved ChunkPeer::serve(Nanoseconds now_ns, std::size_t allowance) noexcept {
  const bool was_greeted = was_greeted_;
  if (state_ == State::kHandshake) shake_hands();
  if (may_read()) read(now_ns);
  Moved moved;
  if (is_hungry() && !is_closed()) moved.sent = write(now_ns, allowance);
  moved.is_greeted = was_greeted_ && !was_greeted;
  moved.has_more = may_read() || (!is_closed() && is_hungry());
  return moved;
}

void ChunkPeer::shake_hands() noexcept {
  if (!can_read_ && !can_write_) return;
  switch (channel_.handshake()) {
    case Io::kDone:
      state_ = State::kGreeting;
      return;
    case Io::kWantRead:
    case Io::kWantWrite:
      // The socket is tried again after its next event.
      can_read_ = can_write_ = false;
      return;
    case Io::kClosed:
      state_ = State::kClosed;
      return;
  }
}

// ---- requests

void ChunkPeer::read(Nanoseconds now_ns) noexcept {
  while (may_read()) {
    // At most as many requests as may be outstanding. The others stay in the socket, and the peer
    // waits.
    const std::size_t most = state_ == State::kGreeting ? kGreetingBytes : room() * kAskBytes;
    const IoResult got =
        channel_.read(std::span{input_}.subspan(input_bytes_, most - input_bytes_));
    if (got.state == Io::kClosed) {
      state_ = State::kClosed;
      return;
    }
    if (got.state != Io::kDone) {
      can_read_ = false;
      return;
    }
    input_bytes_ += got.nbytes;
    advance(now_ns);
  }
}

void ChunkPeer::advance(Nanoseconds now_ns) noexcept {
  if (state_ == State::kGreeting) {
    if (input_bytes_ == kGreetingBytes) take_greeting(now_ns);
  } else if (!take_asks(now_ns)) {
    state_ = State::kClosed;
  }
}

void ChunkPeer::take_greeting(Nanoseconds now_ns) noexcept {
  const auto greeting = read_greeting(std::span{input_}.first<kGreetingBytes>());
  if (!greeting || !is_same(greeting->token, token_)) {
    state_ = State::kClosed;
    return;
  }
  input_bytes_ = 0;
  heard_ns_ = now_ns;
  state_ = State::kServing;
  was_greeted_ = true;
  const auto hello = pack_hello();
  Outgoing& one = output_.emplace_back();
  std::ranges::copy(hello, one.header.begin());
  one.header_bytes = hello.size();
}

bool ChunkPeer::take_asks(Nanoseconds now_ns) noexcept {
  std::size_t at = 0;
  for (; input_bytes_ - at >= kAskBytes; at += kAskBytes) {
    const auto key = read_ask(std::span<const std::byte, kAskBytes>{input_.data() + at, kAskBytes});
    if (!key) return false;
    const ShelfAnswer found = shelf_.look(*key, limits_.park_ns > 0);
    if (found.state == Shelved::kWaiting) {
      parked_.emplace(*key, now_ns + limits_.park_ns);
    } else {
      answer(*key, found);
    }
    heard_ns_ = now_ns;
  }
  input_bytes_ -= at;
  std::memmove(input_.data(), input_.data() + at, input_bytes_);
  return true;
}

void ChunkPeer::settle(Nanoseconds now_ns) noexcept {
  for (auto at = parked_.begin(); at != parked_.end();) {
    const ShelfAnswer found = shelf_.settle(at->first);
    const bool is_late = found.state == Shelved::kWaiting && at->second <= now_ns;
    if (found.state == Shelved::kWaiting && !is_late) {
      ++at;
      continue;
    }
    if (is_late) shelf_.leave(at->first);
    answer(at->first, is_late ? ShelfAnswer{} : found);
    at = parked_.erase(at);
  }
}

// ---- answers

void ChunkPeer::answer(const ChunkKey& key, const ShelfAnswer& found) noexcept {
  Outgoing& one = output_.emplace_back();
  one.key = key;
  one.header = pack(ChunkAnswer{key, static_cast<std::uint32_t>(found.frame.bytes.size())});
  one.header_bytes = kAnswerBytes;
  one.frame = found.frame;
  output_bytes_ += found.frame.bytes.size();
}

std::size_t ChunkPeer::write(Nanoseconds now_ns, std::size_t allowance) noexcept {
  std::array<iovec, kSocketPartsMax> parts;
  std::size_t count = 0;
  std::size_t left = allowance;
  std::size_t skip = output_at_;
  const auto add = [&](std::span<const std::byte> part) {
    const std::size_t skipped = std::min(skip, part.size());
    skip -= skipped;
    const std::size_t nbytes = std::min(part.size() - skipped, left);
    if (nbytes == 0 || count == kSocketPartsMax) return;
    parts[count++] = {const_cast<std::byte*>(part.data() + skipped), nbytes};
    left -= nbytes;
  };
  for (auto one = output_.begin(); one != output_.end() && left > 0 && count < kSocketPartsMax;
       ++one) {
    add(std::span{one->header}.first(one->header_bytes));
    add(one->frame.bytes);
  }
  if (count == 0) return 0;
  const IoResult sent = channel_.write({parts.data(), count});
  if (sent.state == Io::kClosed) {
    state_ = State::kClosed;
  } else if (sent.state != Io::kDone) {
    can_write_ = false;
    if (!stuck_ns_) stuck_ns_ = now_ns;
  } else {
    stuck_ns_.reset();
    heard_ns_ = now_ns;
    drop_sent(sent.nbytes);
  }
  return sent.nbytes;
}

void ChunkPeer::drop_sent(std::size_t nbytes) noexcept {
  output_at_ += nbytes;
  while (!output_.empty() && output_at_ >= output_.front().size()) {
    const Outgoing& done = output_.front();
    output_at_ -= done.size();
    output_bytes_ -= done.frame.bytes.size();
    if (!done.frame.bytes.empty()) shelf_.count_sent(done.key, done.frame.bytes.size());
    output_.pop_front();
  }
}

// ---- deadlines

Nanoseconds ChunkPeer::over_ns() const noexcept {
  if (state_ == State::kClosed) return kNever;
  if (state_ != State::kServing) return greet_by_ns_;
  if (stuck_ns_) return *stuck_ns_ + limits_.send_ns;
  // Unsent data waits for the pace, and parked requests wait for this server. A peer with either is
  // not idle.
  return asks() > 0 ? kNever : heard_ns_ + limits_.idle_ns;
}

Nanoseconds ChunkPeer::deadline_ns() const noexcept {
  Nanoseconds first = over_ns();
  for (const auto& [key, until_ns] : parked_) first = std::min(first, until_ns);
  return first;
}

void ChunkPeer::expire(Nanoseconds now_ns) noexcept {
  if (now_ns >= over_ns()) state_ = State::kClosed;
}

}  // namespace rose::transfer
