// A wire with delay and loss between two TUN devices, since not every kernel has netem.
//
// Arguments: the descriptors of both devices, the delay of each direction in microseconds, and the
// number of packets dropped in a million. The devices prefix each packet with a virtio-net header,
// so that whole bursts can cross in one call. Prints "ready", and runs until its input ends.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Packet = std::vector<char>;

// Packets read before the due ones leave, so that a busy direction does not delay the other.
constexpr int kBurst = 64;
// Packets in one direction: 200 ms of a link of 1 Gb/s. Further packets are lost, as in a router.
constexpr std::size_t kPacketsMax = 20'000;
constexpr std::size_t kPacketBytesMax = (64 << 10) + 64;

struct Direction {
  int from;
  int to;
  std::deque<std::pair<Clock::time_point, Packet>> held{};

  void read(Clock::duration delay, double loss, std::mt19937_64& random) {
    static std::array<char, kPacketBytesMax> room;
    std::bernoulli_distribution is_lost{loss};
    for (int i = 0; i < kBurst; ++i) {
      const ssize_t got = ::read(from, room.data(), room.size());
      if (got <= 0) return;
      if (held.size() == kPacketsMax || is_lost(random)) continue;
      held.emplace_back(Clock::now() + delay, Packet(room.data(), room.data() + got));
    }
  }

  void write_due(Clock::time_point now) {
    for (; !held.empty() && held.front().first <= now; held.pop_front()) {
      const Packet& one = held.front().second;
      static_cast<void>(::write(to, one.data(), one.size()));  // a full device drops it
    }
  }
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) return 2;
  const int near = std::atoi(arguments[1]);
  const int far = std::atoi(arguments[2]);
  const std::chrono::microseconds delay{std::atoll(arguments[3])};
  const double loss = std::atof(arguments[4]) / 1e6;
  for (const int device : {near, far}) ::fcntl(device, F_SETFL, O_NONBLOCK);
  std::mt19937_64 random{41};
  std::array<Direction, 2> directions{Direction{near, far}, Direction{far, near}};
  std::array<pollfd, 3> watched{
      pollfd{near, POLLIN, 0}, {far, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  std::puts("ready");
  std::fflush(stdout);
  while (watched[2].revents == 0) {
    const auto now = Clock::now();
    auto rest = std::chrono::nanoseconds{100'000'000};
    for (Direction& one : directions) {
      one.write_due(now);
      if (!one.held.empty())
        rest = std::min<std::chrono::nanoseconds>(rest, one.held.front().first - now);
    }
    const timespec most{0, std::max<long>(rest.count(), 0)};
    if (::ppoll(watched.data(), watched.size(), &most, nullptr) < 0) return 1;
    for (std::size_t i = 0; i < directions.size(); ++i) {
      if ((watched[i].revents & POLLIN) != 0) directions[i].read(delay, loss, random);
    }
  }
}
