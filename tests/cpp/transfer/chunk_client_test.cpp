// A chunk client with good and bad servers: frames arrive complete, or there is an error.
#include "transfer/chunk_client.h"

#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "chunk_rig.h"
#include "together.h"
#include "transfer/chunk_server.h"

using namespace rose::transfer;
using rose::BootClock;
using rose::Code;
using rose::Nanoseconds;
using rose::Result;
using rose::Status;
using namespace rose::test;

namespace {

constexpr Nanoseconds kMs = 1'000'000;
const Token kToken = token_of(1);

// A client, and its rooms.
class Rig {
 public:
  explicit Rig(std::uint16_t port, std::uint32_t streams = 1, Nanoseconds timeout_ns = kLongNs,
               const Token& token = kToken, std::uint64_t bytes_per_s = 0) {
    ChunkClientConfig config;
    config.host = "127.0.0.1";
    config.port = port;
    config.token = token;
    config.streams = streams;
    config.timeout_ns = timeout_ns;
    config.bytes_per_s = bytes_per_s;
    client = ChunkClient::create(config, std::make_shared<BootClock>()).take();
  }

  Status fetch(const std::vector<ChunkKey>& keys, std::size_t nbytes) {
    std::vector<Want> wants;
    for (const ChunkKey& key : keys) wants.push_back({key, room(nbytes)});
    return client->fetch(std::move(wants));
  }
  // The error, or the received frames by key; empty where the server does not keep one.
  Result<std::map<ChunkKey, Bytes>> collect() {
    std::map<ChunkKey, Bytes> frames;
    while (true) {
      auto arrival = client->next(kLongNs);
      if (!arrival.ok()) return arrival.status();
      if (!arrival.value()) return frames;
      const Arrival& one = *arrival.value();
      Bytes content;
      if (one.is_kept) content.assign(one.room.bytes.begin(), one.room.bytes.end());
      CHECK(frames.emplace(one.key, content).second);
    }
  }
  static Room room(std::size_t nbytes) {
    auto owner = std::make_shared<Bytes>(nbytes);
    return {*owner, owner};
  }

  std::unique_ptr<ChunkClient> client;
};

Bytes of_key(const ChunkKey& key, std::size_t nbytes) {
  return frame_of(nbytes, static_cast<unsigned>(key.n * 1000 + key.tile));
}

std::vector<ChunkKey> tiles(std::uint32_t count) {
  std::vector<ChunkKey> keys;
  for (std::uint32_t tile = 0; tile < count; ++tile) keys.push_back({7, 6, tile});
  return keys;
}

ScriptedServer::Script served_well_from(int first, ScriptedServer::Script before,
                                        std::size_t nbytes) {
  return [=](int number, Wire& wire) {
    if (number < first) return before(number, wire);
    ScriptedServer::serve_well(wire, [=](const ChunkKey& key) { return of_key(key, nbytes); });
  };
}

void check_all(Rig& rig, const std::vector<ChunkKey>& keys, std::size_t nbytes) {
  const auto frames = rig.collect();
  CHECK(frames.ok());
  CHECK_EQ(frames.value().size(), keys.size());
  for (const ChunkKey& key : keys) CHECK(frames.value().at(key) == of_key(key, nbytes));
}

}  // namespace

TEST(frames_come_bit_for_bit_over_any_number_of_streams) {
  ChunkServerConfig config;
  config.host = "127.0.0.1";
  config.token = kToken;
  const auto server = ChunkServer::create(config, std::make_shared<BootClock>()).take();
  CHECK(server->start().ok());
  for (const std::size_t nbytes : {1UL, 31UL, 70'000UL, std::size_t{kFrameBytesMax}}) {
    const std::uint32_t count = nbytes > 100'000 ? 9 : 300;
    for (const ChunkKey& key : tiles(count)) {
      CHECK(server->shelf().put(key, shared(of_key(key, nbytes))).ok());
    }
    for (const std::uint32_t streams : {1U, 4U}) {
      Rig rig{server->port(), streams};
      CHECK(rig.fetch(tiles(count), nbytes).ok());
      check_all(rig, tiles(count), nbytes);
      CHECK(rig.fetch({{8, 7, 0}, {7, 6, 3}}, nbytes).ok());  // the same connections, once more
      const auto frames = rig.collect();
      CHECK(frames.ok());
      CHECK((frames.value().at({8, 7, 0}).empty()));
      CHECK((frames.value().at({7, 6, 3}) == of_key({7, 6, 3}, nbytes)));
      CHECK_EQ(rig.client->stats().losses, 0);
    }
  }
}

TEST(a_connection_that_breaks_after_any_byte_costs_nothing_that_came) {
  constexpr std::size_t kBytes = 40;
  const std::size_t all = kHelloBytes + 2 * (kAnswerBytes + kBytes);
  for (std::size_t length = 0; length < all; ++length) {
    ScriptedServer server{served_well_from(
        1,
        [=](int, Wire& wire) {
          Bytes content = bytes_of(pack_hello());
          wire.receive(kGreetingBytes);
          for (std::uint32_t tile = 0; tile < 2; ++tile) {
            const ChunkKey key{7, 6, tile};
            content = content + bytes_of(pack(ChunkAnswer{key, kBytes})) + of_key(key, kBytes);
          }
          const std::size_t hello = std::min(length, kHelloBytes);
          wire.send({content.begin(), content.begin() + static_cast<std::ptrdiff_t>(hello)});
          if (length <= kHelloBytes) return;
          wire.receive(2 * kAskBytes);
          wire.send({content.begin() + kHelloBytes,
                     content.begin() + static_cast<std::ptrdiff_t>(length)});
        },
        kBytes)};
    Rig rig{server.port()};
    CHECK(rig.fetch(tiles(2), kBytes).ok());
    check_all(rig, tiles(2), kBytes);
    CHECK_EQ(rig.client->stats().losses, 1);
    rig.client->close();
  }
}

TEST(what_a_lost_stream_had_to_bring_comes_over_the_others) {
  std::atomic<int> half_sent{0};
  ScriptedServer server{served_well_from(
      2,
      [&](int, Wire& wire) {
        if (!ScriptedServer::greet(wire)) return;
        const auto key = ScriptedServer::next_ask(wire);
        if (!key) return;
        wire.send(bytes_of(pack(ChunkAnswer{*key, 5000})) + frame_of(2500, 1));
        ++half_sent;
      },
      5000)};
  Rig rig{server.port(), 4};
  CHECK(rig.fetch(tiles(200), 5000).ok());
  check_all(rig, tiles(200), 5000);
  CHECK_EQ(rig.client->stats().losses, half_sent.load());
  rig.client->close();
}

TEST(a_server_that_always_breaks_off_is_tried_once_more_and_then_an_error) {
  ScriptedServer server{[](int, Wire& wire) {
    if (ScriptedServer::greet(wire)) ScriptedServer::next_ask(wire);
  }};
  Rig rig{server.port()};
  for (int round = 1; round <= 2; ++round) {
    CHECK(rig.fetch(tiles(3), 10).ok());
    CHECK(rig.collect().status().code() == Code::kUnavailable);
    CHECK_EQ(server.accepted(), 2 * round);
    CHECK(!rig.client->next(kLongNs).take());  // nothing is in flight any more
  }
  rig.client->close();
}

TEST(a_stream_that_is_silent_is_left_for_the_others) {
  std::atomic<bool> is_asked{false};
  ScriptedServer server{[&](int number, Wire& wire) {
    if (number > 0) {
      ScriptedServer::serve_well(wire, [&](const ChunkKey& key) {
        while (!is_asked.load()) std::this_thread::yield();
        return of_key(key, 300);
      });
    } else if (ScriptedServer::greet(wire) && ScriptedServer::next_ask(wire)) {
      is_asked.store(true);
      wire.receive(1 << 20);  // and never answers
    }
  }};
  Rig rig{server.port(), 2, 2000 * kMs};
  // More than one stream's window, so that both streams have work.
  CHECK(rig.fetch(tiles(600), 300).ok());
  check_all(rig, tiles(600), 300);
  CHECK(rig.client->stats().losses >= 1);
  rig.client->close();
}

TEST(a_server_that_is_silent_is_an_error_in_time) {
  for (const bool is_greeting : {false, true}) {
    ScriptedServer server{[=](int, Wire& wire) {
      if (!is_greeting || ScriptedServer::greet(wire)) wire.receive(1 << 20);
    }};
    Rig rig{server.port(), 2, 50 * kMs};
    CHECK(rig.fetch(tiles(3), 10).ok());
    CHECK(rig.collect().status().code() == Code::kDeadlineExceeded);
    rig.client->close();
  }
}

TEST(a_server_that_sends_byte_by_byte_is_an_error_in_time) {
  constexpr std::size_t kBytes = 400;
  for (const bool is_answered : {false, true}) {
    // Never silent for the whole timeout: only the total takes too long.
    ScriptedServer server{[=](int, Wire& wire) {
      if (!ScriptedServer::greet(wire)) return;
      const auto key = ScriptedServer::next_ask(wire);
      if (!key) return;
      const Bytes answer = bytes_of(pack(ChunkAnswer{*key, kBytes}));
      if (is_answered) wire.send(answer);
      for (const std::byte one : is_answered ? of_key(*key, kBytes) : answer) {
        if (!wire.send({one})) return;
        std::this_thread::sleep_for(std::chrono::milliseconds{50});
      }
      wire.receive(1 << 20);
    }};
    Rig rig{server.port(), 1, 1000 * kMs};
    CHECK(rig.fetch(tiles(1), kBytes).ok());
    CHECK(rig.collect().status().message().find("sends too slowly") != std::string::npos);
    rig.client->close();
  }
}

TEST(a_frame_may_take_long_where_the_client_is_paced) {
  constexpr std::size_t kBytes = 20'000;
  ScriptedServer server{served_well_from(0, {}, kBytes)};
  // The last ones arrive at half of the minimum rate, after the burst is used up.
  Rig rig{server.port(), 1, 1000 * kMs, kToken, 8'000};
  CHECK(rig.fetch(tiles(14), kBytes).ok());
  check_all(rig, tiles(14), kBytes);
  CHECK_EQ(rig.client->stats().losses, 0);
  rig.client->close();
}

TEST(whoever_speaks_something_else_is_an_error) {
  const auto told = [](const ChunkKey& key, std::uint32_t nbytes) {
    return bytes_of(pack(ChunkAnswer{key, nbytes}));
  };
  const Bytes hello = bytes_of(pack_hello());
  const std::vector<Bytes> lies = {
      Bytes(kHelloBytes, std::byte{'H'}),
      hello + Bytes(kAnswerBytes),
      hello + told({7, 6, 0}, 9),
      hello + told({7, 6, 0}, 11),
      hello + told({7, 6, 2}, 10),
      hello + told({7, 5, 0}, 10),
      hello + told({8, 6, 0}, 10),
      hello + told({7, 6, 0}, 10) + frame_of(10, 1) + told({7, 6, 0}, 10),
  };
  for (const Bytes& lie : lies) {
    ScriptedServer server{[&](int, Wire& wire) {
      wire.receive(kGreetingBytes);
      wire.send({lie.begin(), lie.begin() + kHelloBytes});
      wire.receive(2 * kAskBytes);
      wire.send({lie.begin() + kHelloBytes, lie.end()});
      wire.receive(1 << 20);
    }};
    Rig rig{server.port()};
    CHECK(rig.fetch(tiles(2), 10).ok());
    CHECK(rig.collect().status().code() == Code::kCorrupt);
    CHECK_EQ(server.accepted(), 1);
    rig.client->close();
  }
}

TEST(a_wrong_token_and_a_port_where_nobody_listens_are_said) {
  ChunkServerConfig config;
  config.host = "127.0.0.1";
  config.token = kToken;
  auto server = ChunkServer::create(config, std::make_shared<BootClock>()).take();
  CHECK(server->start().ok());
  const std::uint16_t port = server->port();
  for (const bool is_there : {true, false}) {
    if (!is_there) server.reset();
    Rig rig{port, 4, kLongNs, token_of(9)};
    CHECK(rig.fetch(tiles(3), 10).ok());
    const auto collected = rig.collect();
    CHECK(collected.status().code() == Code::kUnavailable);
    CHECK(collected.status().message().find(is_there ? "without an answer" : "cannot be reached") !=
          std::string::npos);
  }
}

TEST(eight_threads_close_it_at_once) {
  ScriptedServer server{[](int, Wire& wire) {
    if (ScriptedServer::greet(wire)) wire.receive(1 << 20);
  }};
  for (int round = 0; round < 20; ++round) {
    Rig rig{server.port()};
    CHECK(rig.fetch(tiles(3), 10).ok());
    rose::test::from_eight_threads([&] {
      rig.client->close();
      CHECK(rig.client->next(0).status().code() == Code::kUnavailable);
    });
  }
}

TEST(cancelling_and_closing_wake_who_waits) {
  std::atomic<int> greeted{0};
  ScriptedServer server{[&](int, Wire& wire) {
    if (!ScriptedServer::greet(wire) || !ScriptedServer::next_ask(wire)) return;
    ++greeted;
    wire.receive(1 << 20);
  }};
  Rig rig{server.port()};
  for (int round = 1; round <= 3; ++round) {
    CHECK(rig.fetch(tiles(3), 10).ok());
    std::thread other{[&] {
      while (greeted.load() < round) std::this_thread::yield();
      if (round < 3) rig.client->cancel();
      if (round == 3) rig.client->close();
    }};
    const auto woken = rig.client->next(kLongNs);
    // After an early cancel there is nothing to wait for.
    CHECK(woken.ok() ? round < 3 && !woken.value() : woken.status().code() == Code::kUnavailable);
    other.join();
    if (round < 3) CHECK(!rig.client->next(kLongNs).take());
  }
  CHECK(rig.client->next(kLongNs).status().code() == Code::kUnavailable);
  CHECK(rig.fetch(tiles(1), 10).code() == Code::kUnavailable);
  rig.client->cancel();
  rig.client->close();
}

TEST(after_a_cancel_no_room_is_touched) {
  ChunkServerConfig config;
  config.host = "127.0.0.1";
  config.token = kToken;
  const auto server = ChunkServer::create(config, std::make_shared<BootClock>()).take();
  CHECK(server->start().ok());
  for (const ChunkKey& key : tiles(8)) {
    CHECK(server->shelf().put(key, shared(of_key(key, kFrameBytesMax))).ok());
  }
  Rig rig{server->port(), 2};
  for (int round = 0; round < 5; ++round) {
    std::vector<Room> rooms;
    std::vector<Want> wants;
    for (const ChunkKey& key : tiles(8)) {
      rooms.push_back(Rig::room(kFrameBytesMax));
      wants.push_back({key, rooms.back()});
    }
    CHECK(rig.client->fetch(std::move(wants)).ok());
    if (round > 0) CHECK(rig.client->next(kLongNs).take().has_value());
    rig.client->cancel();
    // Sanitizers detect a write that races with these, or that follows their end.
    for (const Room& room : rooms) CHECK(room.owner.use_count() == 1);
    for (const Room& room : rooms) std::ranges::fill(room.bytes, std::byte{1});
  }
}

TEST(a_client_reads_no_faster_than_it_may) {
  ScriptedServer server{served_well_from(0, {}, 100'000)};
  Rig rig{server.port(), 2, kLongNs, kToken, 4'000'000};
  const BootClock clock;
  const Nanoseconds began_ns = clock.now_ns();
  CHECK(rig.fetch(tiles(10), 100'000).ok());
  check_all(rig, tiles(10), 100'000);
  // The law itself is tested with the pace; here only that the pace is used.
  const auto took_ns = static_cast<std::uint64_t>(clock.now_ns() - began_ns);
  CHECK(rig.client->stats().received_bytes <= 4'000'000 * took_ns / 1'000'000'000 + (256 << 10));
  rig.client->close();
}

TEST(what_cannot_be_fetched_is_refused_and_nothing_is_asked) {
  ScriptedServer server{served_well_from(0, {}, 10)};
  Rig rig{server.port()};
  CHECK(rig.fetch({{7, 7, 0}}, 10).code() == Code::kInvalidArgument);
  CHECK(rig.fetch({{7, 6, 0}}, 0).code() == Code::kInvalidArgument);
  CHECK(rig.fetch({{7, 6, 0}}, kFrameBytesMax + 1).code() == Code::kInvalidArgument);
  CHECK(rig.fetch({{7, 6, 0}, {7, 6, 1}, {7, 6, 0}}, 10).code() == Code::kInvalidArgument);
  CHECK(!rig.client->next(kLongNs).take());
  CHECK(rig.fetch({{7, 6, 0}}, 10).ok());
  check_all(rig, tiles(1), 10);
  rig.client->close();
  ChunkClientConfig config;
  config.host = "127.0.0.1";
  CHECK(ChunkClient::create(config, std::make_shared<BootClock>()).status().code() ==
        Code::kInvalidArgument);  // no port
  config.port = 1;
  config.streams = kStreamsMax + 1;
  CHECK(ChunkClient::create(config, std::make_shared<BootClock>()).status().code() ==
        Code::kInvalidArgument);
}
