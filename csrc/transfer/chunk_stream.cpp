#include "transfer/chunk_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <limits>
#include <utility>

namespace rose::transfer {

namespace {

// Window of a stream: 16 MiB keep a link of 3 Gb/s busy if an answer takes 40 ms. With small frames
// the number of requests is the limit.
constexpr std::size_t kWindowBytes = 16 << 20;
constexpr std::size_t kWindowAsksMax = 256;

}  // namespace

bool ChunkStream::takes(std::size_t nbytes) const noexcept {
  if (state_ != State::kServing || rooms_.size() >= kWindowAsksMax) return false;
  return rooms_.empty() || asked_bytes_ + nbytes <= kWindowBytes;
}

short ChunkStream::events(bool may_read) const noexcept {
  if (state_ == State::kConnecting) return POLLOUT;
  const bool reads = may_read || state_ != State::kServing;
  return static_cast<short>((reads ? POLLIN : 0) | (wants_write_ ? POLLOUT : 0));
}

// ---- opening

Status ChunkStream::open(Nanoseconds now_ns) noexcept {
  address_ = 0;
  return connect(now_ns);
}

Status ChunkStream::connect(Nanoseconds now_ns) noexcept {
  Status status = Status::unavailable(name() + " has no address");
  for (; address_ < server_.addresses.size(); ++address_) {
    auto socket = connect_to(server_.addresses[address_]);
    status = socket.status();
    if (!socket.ok()) continue;
    std::unique_ptr<TlsSession> session;
    if (server_.tls != nullptr) {
      auto opened = server_.tls->open(socket.value().get(), server_.host);
      if (!opened.ok()) return opened.status();
      session = opened.take();
    }
    channel_.emplace(socket.take(), std::move(session));
    state_ = State::kConnecting;
    moved_ns_ = now_ns;
    return {};
  }
  return Status::unavailable(name() + " cannot be reached: " + status.message());
}

Status ChunkStream::finish_connect(Nanoseconds now_ns) noexcept {
  pollfd writable{get(), POLLOUT, 0};
  if (::poll(&writable, 1, 0) <= 0) return {};
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) {
    if (++address_ < server_.addresses.size()) return connect(now_ns);
    return Status::unavailable(
        from_errno((name() + " cannot be reached").c_str(), error).message());
  }
  state_ = State::kHandshake;
  moved_ns_ = now_ns;
  return {};
}

Status ChunkStream::shake_hands(Nanoseconds now_ns) noexcept {
  const Io outcome = channel_->handshake();
  if (outcome == Io::kClosed) return lost();
  wants_write_ = outcome == Io::kWantWrite;
  if (outcome != Io::kDone) return {};
  state_ = State::kGreeting;
  moved_ns_ = now_ns;
  got_ = 0;
  const auto greeting = pack(Greeting{server_.token, index_});
  output_.assign(greeting.begin(), greeting.end());
  output_at_ = 0;
  return {};
}

// ---- requests

void ChunkStream::ask(Want want, Nanoseconds now_ns) noexcept {
  const auto content = pack(want.key);
  output_.insert(output_.end(), content.begin(), content.end());
  if (rooms_.empty()) moved_ns_ = now_ns;
  asked_bytes_ += want.room.bytes.size();
  rooms_.emplace(want.key, std::move(want.room));
}

Status ChunkStream::flush(Nanoseconds now_ns) noexcept {
  while (output_at_ < output_.size()) {
    const iovec part{output_.data() + output_at_, output_.size() - output_at_};
    const IoResult sent = channel_->write({&part, 1});
    if (sent.state == Io::kClosed) return lost();
    wants_write_ = sent.state != Io::kDone;
    if (wants_write_) return {};
    output_at_ += sent.nbytes;
    moved_ns_ = now_ns;
  }
  output_.clear();
  output_at_ = 0;
  return {};
}

// ---- answers

Result<std::size_t> ChunkStream::serve(Nanoseconds now_ns, std::size_t allowance,
                                       std::vector<Arrival>& arrivals) noexcept {
  if (state_ == State::kConnecting) ROSE_TRY(finish_connect(now_ns));
  if (state_ == State::kHandshake) ROSE_TRY(shake_hands(now_ns));
  if (state_ != State::kGreeting && state_ != State::kServing) return std::size_t{0};
  ROSE_TRY(flush(now_ns));
  return read(now_ns, allowance, arrivals);
}

Result<std::size_t> ChunkStream::read(Nanoseconds now_ns, std::size_t allowance,
                                      std::vector<Arrival>& arrivals) noexcept {
  std::size_t received = 0;
  while (received < allowance) {
    const auto room = target();
    const IoResult got = channel_->read(room.first(std::min(room.size(), allowance - received)));
    if (got.state == Io::kClosed) return lost();
    if (got.state != Io::kDone) break;
    if (begun_bytes_ == 0) {
      begun_bytes_ = room.size();
      begun_ns_ = now_ns;
    }
    received += got.nbytes;
    got_ += got.nbytes;
    moved_ns_ = now_ns;
    if (got.nbytes < room.size()) continue;
    begun_bytes_ = 0;
    ROSE_TRY(advance(arrivals));
  }
  return received;
}

std::span<std::byte> ChunkStream::target() noexcept {
  if (current_) return rooms_.at(*current_).bytes.subspan(got_);
  const std::size_t size = state_ == State::kGreeting ? kHelloBytes : kAnswerBytes;
  return std::span{header_}.subspan(got_, size - got_);
}

Status ChunkStream::advance(std::vector<Arrival>& arrivals) noexcept {
  got_ = 0;
  if (state_ == State::kGreeting) {
    if (!is_hello(std::span{header_}.first<kHelloBytes>())) {
      return Status::corrupt(name() + " did not answer the greeting like a chunk server");
    }
    state_ = State::kServing;
    return {};
  }
  if (!current_) return take_answer(arrivals);
  auto whole = rooms_.extract(*std::exchange(current_, std::nullopt));
  asked_bytes_ -= whole.mapped().bytes.size();
  arrivals.push_back({whole.key(), true, std::move(whole.mapped())});
  return {};
}

Status ChunkStream::take_answer(std::vector<Arrival>& arrivals) noexcept {
  const auto answer = read_answer(header_);
  if (!answer) return Status::corrupt(name() + " sent bytes that are not a valid answer");
  const auto found = rooms_.find(answer->key);
  const std::string which =
      "tile " + std::to_string(answer->key.tile) + " of version " + std::to_string(answer->key.n);
  if (found == rooms_.end()) {
    return Status::corrupt(name() + " answers for " + which + ", which was not requested");
  }
  const std::size_t size = found->second.bytes.size();
  if (answer->nbytes == 0) {
    asked_bytes_ -= size;
    arrivals.push_back({answer->key, false, std::move(found->second)});
    rooms_.erase(found);
  } else if (answer->nbytes != size) {
    return Status::corrupt(name() + " sent " + std::to_string(answer->nbytes) + " bytes for " +
                           which + " instead of " + std::to_string(size));
  } else {
    current_ = answer->key;
  }
  return {};
}

// ---- deadlines and losses

std::optional<Nanoseconds> ChunkStream::late_ns() const noexcept {
  const bool is_due = !is_resting() && (state_ != State::kServing || has_asks());
  if (!is_due) return std::nullopt;
  return std::min(moved_ns_ + server_.timeout_ns, slow_ns());
}

Nanoseconds ChunkStream::slow_ns() const noexcept {
  if (begun_bytes_ == 0) return std::numeric_limits<Nanoseconds>::max();
  const auto nbytes = static_cast<Nanoseconds>(begun_bytes_);
  return begun_ns_ + server_.timeout_ns + nbytes * 1'000'000'000 / kLeastBytesPerS;
}

void ChunkStream::excuse(Nanoseconds now_ns) noexcept {
  moved_ns_ = now_ns;
  if (begun_bytes_ == 0) return;
  begun_bytes_ = target().size();
  begun_ns_ = now_ns;
}

Status ChunkStream::lateness() const noexcept {
  const std::string after = std::to_string(server_.timeout_ns / 1'000'000) + " ms";
  if (state_ == State::kConnecting) {
    return Status::unavailable(name() + " cannot be reached within " + after);
  }
  if (slow_ns() < moved_ns_ + server_.timeout_ns) {
    return Status::deadline_exceeded(name() + " sends too slowly: a chunk took longer than " +
                                     after + " plus its size at 16 KiB/s");
  }
  return Status::deadline_exceeded(name() + " sent nothing for " + after);
}

std::vector<Want> ChunkStream::take_back() noexcept {
  std::vector<Want> wants;
  for (auto& [key, room] : std::exchange(rooms_, {})) wants.push_back({key, std::move(room)});
  channel_.reset();
  state_ = State::kResting;
  output_.clear();
  output_at_ = asked_bytes_ = got_ = begun_bytes_ = 0;
  current_.reset();
  wants_write_ = false;
  return wants;
}

Status ChunkStream::lost() const noexcept {
  const std::string why = channel_->failure();
  if (state_ == State::kGreeting && why.empty()) {
    return Status::unavailable(name() +
                               " closed the connection without an answer: the token is "
                               "wrong, or the server has no free connection");
  }
  return Status::unavailable("the connection to " + name() + " broke" +
                             (why.empty() ? "" : ": " + why));
}

std::string ChunkStream::name() const { return "the chunk server at " + server_.host; }

}  // namespace rose::transfer
