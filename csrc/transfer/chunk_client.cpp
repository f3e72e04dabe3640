#include "transfer/chunk_client.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <utility>

#include "transfer/chunk_thread.h"

namespace rose::transfer {

namespace {

// Time after which a broken connection is opened again while others continue.
constexpr Nanoseconds kRetryNs = 1'000'000'000;
constexpr std::uint64_t kBurstBytes = 256 << 10;

Status check_want(const Want& want) noexcept {
  const std::size_t size = want.room.bytes.size();
  if (!is_update(want.key.n, want.key.base_n)) {
    return Status::invalid_argument(
        "an update cannot lead from version " + std::to_string(want.key.base_n) + " to " +
        std::to_string(want.key.n) + ": its base must be an older version, or -1 for none");
  }
  if (size == 0 || size > kFrameBytesMax) {
    return Status::invalid_argument("tile " + std::to_string(want.key.tile) + " has " +
                                    std::to_string(size) + " bytes: the size must be from 1 to " +
                                    std::to_string(kFrameBytesMax));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ChunkClient>> ChunkClient::create(
    const ChunkClientConfig& config, std::shared_ptr<const Clock> clock) noexcept {
  if (config.streams == 0 || config.streams > kStreamsMax || config.timeout_ns <= 0 ||
      config.port == 0) {
    return Status::invalid_argument("port and timeout must be > 0, and streams from 1 to " +
                                    std::to_string(kStreamsMax) + ", but they are " +
                                    std::to_string(config.port) + ", " +
                                    std::to_string(config.timeout_ns / 1'000'000) + " ms and " +
                                    std::to_string(config.streams));
  }
  auto addresses = resolve(config.host, config.port);
  if (!addresses.ok()) return addresses.status();
  auto bell = EventFd::create();
  if (!bell.ok()) return bell.status();
  ChunkStream::Server server{.host = config.host,
                             .addresses = addresses.take(),
                             .token = config.token,
                             .tls = config.tls,
                             .timeout_ns = config.timeout_ns};
  std::unique_ptr<ChunkClient> client{
      new ChunkClient{config, std::move(server), std::move(clock), bell.take()}};
  ROSE_TRY(client->thread_.start("the chunk client", [one = client.get()] { one->run(); }));
  return client;
}

ChunkClient::ChunkClient(const ChunkClientConfig& config, ChunkStream::Server server,
                         std::shared_ptr<const Clock> clock, EventFd bell) noexcept
    : server_{std::move(server)},
      clock_{std::move(clock)},
      bell_{std::move(bell)},
      rests_(config.streams) {
  streams_.reserve(config.streams);
  for (std::uint32_t i = 0; i < config.streams; ++i) streams_.emplace_back(server_, i);
  pace_.set(clock_->now_ns(), config.bytes_per_s, kBurstBytes);
}

ChunkClient::~ChunkClient() { close(); }

// ---- any thread

Status ChunkClient::fetch(std::vector<Want> wants) noexcept {
  for (const Want& want : wants) ROSE_TRY(check_want(want));
  {
    const std::scoped_lock lock{mutex_};
    if (is_closed_) return Status::unavailable("this chunk client is closed");
    for (std::size_t i = 0; i < wants.size(); ++i) {
      if (outstanding_.insert(wants[i].key).second) continue;
      for (std::size_t j = 0; j < i; ++j) outstanding_.erase(wants[j].key);
      return Status::invalid_argument("tile " + std::to_string(wants[i].key.tile) +
                                      " was requested already: request each tile once");
    }
    std::ranges::move(wants, std::back_inserter(asked_));
  }
  bell_.ring();
  return {};
}

Result<std::optional<Arrival>> ChunkClient::next(Nanoseconds timeout_ns) noexcept {
  std::unique_lock lock{mutex_};
  const std::uint64_t cancels = cancels_wanted_;
  std::uint64_t seen = received_bytes_.load();
  const auto is_over = [&] {
    return is_closed_ || cancels_wanted_ != cancels || !arrived_.empty() || !failure_.ok() ||
           outstanding_.empty();
  };
  while (!changed_.wait_for(lock, std::chrono::nanoseconds{timeout_ns}, is_over)) {
    // A large frame on a slow link: while bytes arrive, the wait continues.
    const std::uint64_t now_seen = received_bytes_.load();
    if (std::exchange(seen, now_seen) == now_seen) {
      return Status::deadline_exceeded("no byte of a chunk arrived within " +
                                       std::to_string(timeout_ns / 1'000'000) + " ms");
    }
  }
  if (is_closed_) return Status::unavailable("this chunk client is closed");
  if (cancels_wanted_ != cancels) return Status::unavailable("the fetch was cancelled");
  if (!arrived_.empty()) {
    Arrival arrival = std::move(arrived_.front());
    arrived_.pop_front();
    outstanding_.erase(arrival.key);
    return std::optional{std::move(arrival)};
  }
  if (!failure_.ok()) return std::exchange(failure_, {});
  return std::optional<Arrival>{};
}

void ChunkClient::cancel() noexcept {
  std::unique_lock lock{mutex_};
  if (is_over_) return;
  const std::uint64_t mine = ++cancels_wanted_;
  changed_.notify_all();
  bell_.ring();
  // The thread blocks only on its bell and sockets, so this wait is short.
  changed_.wait(lock, [&] { return cancels_done_ >= mine || is_over_; });
}

void ChunkClient::close() noexcept {
  if (!owner_.is_here()) return;
  {
    const std::scoped_lock lock{mutex_};
    is_closed_ = true;
    changed_.notify_all();
  }
  bell_.ring();
  thread_.join();
}

ChunkClientStats ChunkClient::stats() const noexcept {
  return {.received_bytes = received_bytes_.load(),
          .losses = losses_.load(),
          .greeted = greeted_.load()};
}

// ---- the thread

void ChunkClient::run() noexcept {
  while (take_orders()) {
    const Nanoseconds now_ns = clock_->now_ns();
    open_streams(now_ns);
    assign(now_ns);
    // If true, a window has room, more data can be read, or lost requests must be repeated.
    const bool is_hurried = serve(now_ns);
    hand_over();
    const bool tries_again = end_if_hopeless();
    sleep(is_hurried || tries_again);
  }
  for (ChunkStream& stream : streams_) static_cast<void>(stream.take_back());
  const std::scoped_lock lock{mutex_};
  is_over_ = true;
  changed_.notify_all();
}

// False if the thread must end.
bool ChunkClient::take_orders() noexcept {
  bell_.silence();
  const std::scoped_lock lock{mutex_};
  if (is_closed_) return false;
  if (cancels_done_ != cancels_wanted_) {
    drop_everything();
    asked_.clear();
    arrived_.clear();
    outstanding_.clear();
    failure_ = {};
    cancels_done_ = cancels_wanted_;
    changed_.notify_all();
  }
  if (!asked_.empty() && !has_work()) {
    may_open_again_ = true;
    forgive();
  }
  std::ranges::move(asked_, std::back_inserter(pending_));
  asked_.clear();
  return true;
}

bool ChunkClient::has_work() const noexcept {
  return !pending_.empty() ||
         std::ranges::any_of(streams_, [](const ChunkStream& one) { return one.has_asks(); });
}

void ChunkClient::open_streams(Nanoseconds now_ns) noexcept {
  std::size_t useful = pending_.size();  // with more connections than chunks some would be idle
  for (std::size_t i = 0; i < streams_.size() && useful > 0; ++i) {
    if (streams_[i].is_resting() && may_open(i, now_ns)) open(i, now_ns);
    --useful;
  }
}

bool ChunkClient::may_open(std::size_t index, Nanoseconds now_ns) const noexcept {
  const Rest& rest = rests_[index];
  return rest.is_over || (rest.until_ns <= now_ns && arrivals_count_ > rest.arrivals);
}

void ChunkClient::forgive() noexcept { std::ranges::fill(rests_, Rest{}); }

void ChunkClient::open(std::size_t index, Nanoseconds now_ns) noexcept {
  Status status = streams_[index].open(now_ns);
  if (!status.ok()) lose(index, std::move(status), now_ns);
}

// One chunk per connection in turn, so that a few chunks use all streams.
void ChunkClient::assign(Nanoseconds now_ns) noexcept {
  bool is_taken = true;
  while (is_taken) {
    is_taken = false;
    for (ChunkStream& stream : streams_) {
      if (pending_.empty()) return;
      if (!stream.takes(pending_.front().room.bytes.size())) continue;
      stream.ask(std::move(pending_.front()), now_ns);
      pending_.pop_front();
      is_taken = true;
    }
  }
}

// True if data arrived or requests were lost.
bool ChunkClient::serve(Nanoseconds now_ns) noexcept {
  bool is_hurried = false;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    ChunkStream& stream = streams_[i];
    if (stream.is_resting()) continue;
    const std::uint64_t available = pace_.available(now_ns);
    const bool is_open = available >= kPacedStepBytes;
    if (!is_open) stream.excuse(now_ns);
    const bool was_serving = stream.is_serving();
    auto moved = stream.serve(
        now_ns,
        is_open ? static_cast<std::size_t>(std::min<std::uint64_t>(available, kShareBytes)) : 0,
        arrivals_);
    if (!was_serving && stream.is_serving()) greeted_.fetch_add(1);
    if (!moved.ok()) {
      lose(i, moved.status(), now_ns);
      is_hurried = true;
      continue;
    }
    pace_.take(now_ns, moved.value());
    received_bytes_.fetch_add(moved.value());
    is_hurried = is_hurried || moved.value() > 0;
    const auto late_ns = stream.late_ns();
    if (late_ns && now_ns >= *late_ns) {
      lose(i, stream.lateness(), now_ns);
      is_hurried = true;
    }
  }
  return is_hurried;
}

void ChunkClient::lose(std::size_t index, Status why, Nanoseconds now_ns) noexcept {
  const bool was_idle = !has_work();
  for (Want& want : streams_[index].take_back()) pending_.push_front(std::move(want));
  if (was_idle) return;  // no loss: the server closes idle connections
  losses_.fetch_add(1);
  rests_[index] = {now_ns + kRetryNs, arrivals_count_, false};
  last_loss_ = std::move(why);
}

// Gives up the missing chunks if no connection can get them. Returns true if the connections must
// be opened again at once.
bool ChunkClient::end_if_hopeless() noexcept {
  if (!has_work()) last_loss_ = {};
  if (last_loss_.ok()) return false;
  const bool is_alone =
      std::ranges::all_of(streams_, [](const ChunkStream& one) { return one.is_resting(); });
  const bool is_corrupt = last_loss_.code() == Code::kCorrupt;
  if (!is_alone && !is_corrupt) return false;
  if (is_corrupt || !may_open_again_ || last_loss_.code() == Code::kDeadlineExceeded) {
    give_up(std::exchange(last_loss_, {}));
    return false;
  }
  may_open_again_ = false;
  last_loss_ = {};
  forgive();
  return true;
}

void ChunkClient::hand_over() noexcept {
  if (arrivals_.empty()) return;
  may_open_again_ = true;
  arrivals_count_ += arrivals_.size();
  const std::scoped_lock lock{mutex_};
  std::ranges::move(arrivals_, std::back_inserter(arrived_));
  arrivals_.clear();
  changed_.notify_all();
}

void ChunkClient::give_up(Status why) noexcept {
  const std::scoped_lock lock{mutex_};
  drop_everything();
  asked_.clear();
  outstanding_.clear();
  for (const Arrival& arrival : arrived_) outstanding_.insert(arrival.key);
  failure_ = std::move(why);
  changed_.notify_all();
}

// Closes only connections that still expect answers.
void ChunkClient::drop_everything() noexcept {
  pending_.clear();
  arrivals_.clear();
  last_loss_ = {};
  forgive();
  for (ChunkStream& stream : streams_) {
    if (stream.has_asks()) static_cast<void>(stream.take_back());
  }
}

void ChunkClient::sleep(bool is_hurried) noexcept {
  const Nanoseconds now_ns = clock_->now_ns();
  const bool may_read = pace_.available(now_ns) >= kPacedStepBytes;
  std::array<pollfd, kStreamsMax + 1> fds;
  std::size_t count = 0;
  fds[count++] = {bell_.get(), POLLIN, 0};
  Nanoseconds wait_ns = kLongestSleepNs;
  if (!may_read) wait_ns = pace_.wait_ns(now_ns, kPacedStepBytes);
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].is_resting()) {
      const Nanoseconds rest_ns = rests_[i].is_over ? 0 : rests_[i].until_ns - now_ns;
      if (!pending_.empty() && rest_ns > 0) wait_ns = std::min(wait_ns, rest_ns);
      continue;
    }
    fds[count++] = {streams_[i].get(), streams_[i].events(may_read), 0};
    if (const auto late_ns = streams_[i].late_ns()) wait_ns = std::min(wait_ns, *late_ns - now_ns);
  }
  poll_for(std::span{fds}.first(count), is_hurried ? 0 : wait_ns);
}

}  // namespace rose::transfer
