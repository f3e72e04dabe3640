#include "transfer/chunk_server.h"

#include <linux/tcp.h>  // of netinet/tcp.h tcp_info lacks the shortest round trip
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "transfer/chunk_thread.h"

namespace rose::transfer {

namespace {

constexpr Nanoseconds kMillisecondNs = 1'000'000;  // unit of epoll's timeout
constexpr std::size_t kEventsMax = 64;
// Pause of the listener when no descriptor is free: otherwise the connection that cannot be
// accepted would end every wait at once.
constexpr Nanoseconds kRestNs = 100'000'000;
constexpr Nanoseconds kMeasureNs = 1'000'000'000;
constexpr int kAcceptsMax = 16;  // per round, so that connected peers do not wait
// Bytes that one receiver gets before the next receiver's turn, if the pace is limited.
constexpr std::size_t kPacedShareBytes = 64 << 10;

Status check_config(const ChunkServerConfig& config) noexcept {
  const PeerLimits& limits = config.limits;
  if (config.connections_max == 0 || limits.greeting_ns <= 0 || limits.idle_ns <= 0 ||
      limits.send_ns <= 0 || limits.park_ns < 0) {
    const auto ms = [](Nanoseconds ns) { return std::to_string(ns / kMillisecondNs); };
    return Status::invalid_argument(
        "connections_max, greeting_ms, idle_ms and send_ms must be > 0, and park_ms >= 0, but they "
        "are " +
        std::to_string(config.connections_max) + ", " + ms(limits.greeting_ns) + ", " +
        ms(limits.idle_ns) + ", " + ms(limits.send_ns) + " and " + ms(limits.park_ns));
  }
  return {};
}

Status check_burst(std::uint64_t burst_bytes) noexcept {
  if (burst_bytes >= ChunkServer::kBurstBytesMin && burst_bytes <= ChunkPace::kBurstBytesMax) {
    return {};
  }
  return Status::invalid_argument("burst_bytes " + std::to_string(burst_bytes) +
                                  " must be from 16 KiB to 4 GiB");
}

}  // namespace

Result<std::unique_ptr<ChunkServer>> ChunkServer::create(
    const ChunkServerConfig& config, std::shared_ptr<const Clock> clock) noexcept {
  ROSE_TRY(check_config(config));
  ROSE_TRY(check_burst(config.burst_bytes));
  auto addresses = resolve(config.host, config.port);
  if (!addresses.ok()) return addresses.status();
  auto listener = listen_on(addresses.value().front());
  if (!listener.ok()) {
    return Status::unavailable(config.host + ":" + std::to_string(config.port) + ": " +
                               listener.status().message());
  }
  auto port = port_of(listener.value());
  if (!port.ok()) return port.status();
  auto bell = EventFd::create();
  if (!bell.ok()) return bell.status();
  FileDescriptor epoll{::epoll_create1(EPOLL_CLOEXEC)};
  if (!epoll.is_open()) return from_errno("epoll_create1", errno);
  std::unique_ptr<ChunkServer> server{new ChunkServer{
      config, std::move(clock), bell.take(), listener.take(), std::move(epoll), port.value()}};
  ROSE_TRY(server->watch(server->listener_.get(), EPOLLIN));
  ROSE_TRY(server->watch(server->shelf_.bell(), EPOLLIN));
  return server;
}

ChunkServer::ChunkServer(const ChunkServerConfig& config, std::shared_ptr<const Clock> clock,
                         EventFd bell, FileDescriptor listener, FileDescriptor epoll,
                         std::uint16_t port) noexcept
    : token_{config.token},
      tls_{config.tls},
      limits_{config.limits},
      connections_max_{config.connections_max},
      clock_{std::move(clock)},
      listener_{std::move(listener)},
      epoll_{std::move(epoll)},
      port_{port},
      shelf_{std::move(bell)} {
  pace_.set(clock_->now_ns(), config.bytes_per_s, config.burst_bytes);
}

ChunkServer::~ChunkServer() { close(); }

Status ChunkServer::start() noexcept {
  return thread_.start("the chunk server", [this] { run(); });
}

void ChunkServer::close() noexcept {
  if (!owner_.is_here()) return;
  is_closing_.store(true);
  shelf_.close();
  shelf_.ring();
  thread_.join();
  connections_.store(0);
}

void ChunkServer::run() noexcept {
  while (!is_closing_.load()) turn(kLongestSleepNs);
  // The peers are closed in this thread because it blocks SIGPIPE, which TLS's last message to a
  // closed peer would raise.
  peers_.clear();
}

Status ChunkServer::set_pace(std::uint64_t bytes_per_s, std::uint64_t burst_bytes) noexcept {
  ROSE_TRY(check_burst(burst_bytes));
  {
    const std::scoped_lock lock{orders_};
    order_ = PaceOrder{bytes_per_s, burst_bytes};
  }
  shelf_.ring();
  return {};
}

ChunkServerStats ChunkServer::stats() const noexcept {
  return {.wire_bytes = wire_bytes_.load(),
          .greeted = greeted_.load(),
          .turned_away = turned_away_.load(),
          .connections = connections_.load(),
          .longest_rtt_us = longest_rtt_us_.load()};
}

void ChunkServer::measure(Nanoseconds now_ns) noexcept {
  if (peers_.empty() || now_ns - measured_ns_ < kMeasureNs) return;
  measured_ns_ = now_ns;
  std::uint32_t longest_us = 0;
  for (const auto& [fd, peer] : peers_) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
      longest_us = std::max(longest_us, info.tcpi_min_rtt);
    }
  }
  longest_rtt_us_.store(longest_us);
}

// ---- one turn

void ChunkServer::turn(Nanoseconds wait_ns) noexcept {
  std::array<epoll_event, kEventsMax> events;
  // Rounded up, because with waits that end just before the deadline the loop would spin.
  const Nanoseconds most_ns = longest_wait(wait_ns);
  const int timeout_ms = static_cast<int>((most_ns + kMillisecondNs - 1) / kMillisecondNs);
  const int ready = ::epoll_wait(epoll_.get(), events.data(), kEventsMax, timeout_ms);
  const Nanoseconds now_ns = clock_->now_ns();
  if (listens_at_ns_ && now_ns >= *listens_at_ns_ && watch(listener_.get(), EPOLLIN).ok()) {
    listens_at_ns_.reset();
  }
  bool is_rung = false;
  for (int i = 0; i < ready; ++i) {
    const int fd = events[static_cast<std::size_t>(i)].data.fd;
    if (fd == listener_.get()) {
      accept(now_ns);
    } else if (fd == shelf_.bell()) {
      is_rung = true;
    } else if (const auto peer = peers_.find(fd); peer != peers_.end()) {
      peer->second->wake();
    }
  }
  if (is_rung) {
    shelf_.silence();
    take_pace(now_ns);
  }
  // settle() comes before serve(), so that new answers are sent in this round, and before expire(),
  // because a peer with an answer has no deadline.
  for (auto& [fd, peer] : peers_) peer->settle(now_ns);
  serve(now_ns);
  for (auto& [fd, peer] : peers_) peer->expire(now_ns);
  measure(now_ns);
  drop_closed();
}

Nanoseconds ChunkServer::longest_wait(Nanoseconds most_ns) noexcept {
  if (has_more_) return 0;
  const Nanoseconds now_ns = clock_->now_ns();
  if (listens_at_ns_) most_ns = std::clamp<Nanoseconds>(*listens_at_ns_ - now_ns, 0, most_ns);
  if (is_paced_out_) most_ns = std::min(most_ns, pace_.wait_ns(now_ns, kPacedStepBytes));
  for (const auto& [fd, peer] : peers_) {
    const Nanoseconds deadline_ns = peer->deadline_ns();
    // The difference is computed only for a near deadline, because "never" would overflow.
    if (deadline_ns < now_ns + most_ns) most_ns = std::max<Nanoseconds>(deadline_ns - now_ns, 0);
  }
  return most_ns;
}

void ChunkServer::take_pace(Nanoseconds now_ns) noexcept {
  const std::scoped_lock lock{orders_};
  if (order_) pace_.set(now_ns, order_->bytes_per_s, order_->burst_bytes);
  order_.reset();
}

void ChunkServer::serve(Nanoseconds now_ns) noexcept {
  has_more_ = is_paced_out_ = false;
  // Each round starts after the last served peer, so that every peer gets its turn at a low pace.
  auto at = peers_.upper_bound(served_last_);
  for (std::size_t i = 0; i < peers_.size(); ++i, ++at) {
    if (at == peers_.end()) at = peers_.begin();
    const std::uint64_t available = pace_.available(now_ns);
    const bool is_open = available >= kPacedStepBytes;
    const std::size_t share = pace_.is_limited() ? kPacedShareBytes : kShareBytes;
    const auto moved = at->second->serve(
        now_ns, is_open ? static_cast<std::size_t>(std::min<std::uint64_t>(available, share)) : 0);
    pace_.take(now_ns, moved.sent);
    wire_bytes_.fetch_add(moved.sent);
    if (moved.is_greeted) greeted_.fetch_add(1);
    if (moved.sent > 0) served_last_ = at->first;
    const bool waits_for_pace =
        at->second->is_hungry() && pace_.is_limited() && pace_.available(now_ns) < kPacedStepBytes;
    is_paced_out_ = is_paced_out_ || waits_for_pace;
    has_more_ = has_more_ || (moved.has_more && !waits_for_pace);
  }
}

void ChunkServer::drop_closed() noexcept {
  std::erase_if(peers_, [this](const auto& one) {
    if (!one.second->is_closed()) return false;
    if (!one.second->was_greeted()) turned_away_.fetch_add(1);
    return true;
  });
  connections_.store(static_cast<std::uint32_t>(peers_.size()));
}

// ---- new connections

Status ChunkServer::watch(int fd, std::uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return from_errno("epoll_ctl", errno);
  }
  return {};
}

void ChunkServer::accept(Nanoseconds now_ns) noexcept {
  for (int i = 0; i < kAcceptsMax; ++i) {
    FileDescriptor socket{
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (!socket.is_open()) {
      if (errno == EMFILE || errno == ENFILE) rest_listener(now_ns);
      return;
    }
    if (peers_.size() >= connections_max_ && !has_made_room()) {
      turned_away_.fetch_add(1);
      continue;
    }
    admit(std::move(socket), now_ns);
  }
}

// Closes the oldest connection that has not shown the token, because such connections must not keep
// out a receiver that has the token. False if there is no such connection.
bool ChunkServer::has_made_room() noexcept {
  auto oldest = peers_.end();
  for (auto at = peers_.begin(); at != peers_.end(); ++at) {
    if (at->second->was_greeted()) continue;
    if (oldest == peers_.end() || at->second->greet_by_ns() < oldest->second->greet_by_ns()) {
      oldest = at;
    }
  }
  if (oldest == peers_.end()) return false;
  peers_.erase(oldest);
  turned_away_.fetch_add(1);
  return true;
}

void ChunkServer::rest_listener(Nanoseconds now_ns) noexcept {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  listens_at_ns_ = now_ns + kRestNs;
}

void ChunkServer::admit(FileDescriptor socket, Nanoseconds now_ns) noexcept {
  const int fd = socket.get();
  send_at_once(socket);
  std::unique_ptr<TlsSession> session;
  if (tls_ != nullptr) {
    auto opened = tls_->open(fd, {});
    if (!opened.ok()) return;
    session = opened.take();
  }
  // Edge-triggered: a peer that must not be read yet, or has no output, causes no wake-ups.
  if (!watch(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET).ok()) return;
  peers_.emplace(
      fd, std::make_unique<ChunkPeer>(ChunkChannel{std::move(socket), std::move(session)}, shelf_,
                                      token_, limits_, now_ns));
}

}  // namespace rose::transfer
