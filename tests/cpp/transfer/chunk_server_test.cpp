// A chunk server and its connections: receivers get requested chunks, strangers nothing.
#include "transfer/chunk_server.h"

#include <chrono>
#include <limits>
#include <set>
#include <thread>

#include "chunk_rig.h"
#include "together.h"

using namespace rose::transfer;
using rose::Code;
using rose::ManualClock;
using rose::Nanoseconds;
using namespace rose::test;

namespace {

constexpr Nanoseconds kMs = 1'000'000;
constexpr Nanoseconds kSecond = 1000 * kMs;
// Longer than any clock here: clocks that run continue while the server is awaited, however long
// that takes.
constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max() / 2;
const Token kToken = token_of(1);

struct Rig {
  std::shared_ptr<ManualClock> clock{std::make_shared<ManualClock>()};
  std::unique_ptr<ChunkServer> server;

  explicit Rig(ChunkServerConfig config = {}, bool has_thread = true) {
    config.host = "127.0.0.1";
    config.token = kToken;
    server = ChunkServer::create(config, clock).take();
    if (has_thread) CHECK(server->start().ok());
  }
  void put(const ChunkKey& key, const Bytes& content) {
    CHECK(server->shelf().put(key, shared(content)).ok());
  }
  Wire greet() { return Wire::greet(server->port(), kToken); }
  Wire connect() { return Wire::connect(server->port()); }
  // The second pass in a turn that began after the first was answered, so it has seen the clock.
  void ask_now(Wire& wire) {
    for (int ask = 0; ask < 2; ++ask) {
      wire.ask({9, 8, 0});
      CHECK_EQ(wire.answer().nbytes, 0);
    }
  }
  // Advances the time step by step until the condition holds.
  template <typename Predicate>
  void advance_until(Nanoseconds step_ns, Predicate is_so) {
    const auto began = std::chrono::steady_clock::now();
    while (!is_so()) {
      CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds{kLongS});
      clock->advance(step_ns);
      server->shelf().ring();
      std::this_thread::yield();
    }
  }
};

void check_answer(Wire& wire, const ChunkKey& key, const Bytes& content) {
  const ChunkAnswer answer = wire.answer();
  CHECK(answer.key == key);
  CHECK_EQ(answer.nbytes, content.size());
  CHECK(wire.receive(answer.nbytes) == content);
}

}  // namespace

TEST(a_receiver_gets_what_is_kept_and_is_told_what_is_not) {
  Rig rig;
  const Bytes small = frame_of(1, 1), large = frame_of(kFrameBytesMax, 2);
  rig.put({3, 2, 0}, small);
  rig.put({3, -1, 0}, large);
  Wire wire = rig.greet();
  wire.ask({3, -1, 0});
  wire.ask({4, 3, 0});
  wire.ask({3, 2, 0});
  check_answer(wire, {3, -1, 0}, large);
  check_answer(wire, {4, 3, 0}, {});
  check_answer(wire, {3, 2, 0}, small);
  const std::size_t all = kHelloBytes + 3 * kAnswerBytes + 1 + kFrameBytesMax;
  rig.advance_until(0, [&] { return rig.server->stats().wire_bytes >= all; });  // counted last
  CHECK_EQ(rig.server->stats().wire_bytes, all);
  CHECK_EQ(rig.server->shelf().sent_bytes(3, 2), 1);
  CHECK_EQ(rig.server->shelf().sent_bytes(3, -1), kFrameBytesMax);
  CHECK_EQ(rig.server->stats().greeted, 1);
}

TEST(a_stranger_is_hung_up_on_without_a_byte) {
  Rig rig;
  rig.put({3, 2, 0}, frame_of(9, 1));
  const Bytes sound = bytes_of(pack(Greeting{kToken, 0}));
  std::uint64_t strangers = 0;
  for (std::size_t at : {0, 8, 13, 16, 47}) {  // magic, version, stream, the token's ends
    Bytes said = sound;
    said[at] ^= std::byte{0x40};
    Wire wire = rig.connect();
    wire.send(said + bytes_of(pack(ChunkKey{3, 2, 0})));
    CHECK(wire.is_hung_up());
    rig.advance_until(0, [&] { return rig.server->stats().turned_away == strangers + 1; });
    ++strangers;
  }
  Wire wire = rig.connect();
  wire.send(Bytes(1 << 20, std::byte{'G'}));
  CHECK(wire.is_hung_up());
  CHECK_EQ(rig.server->stats().greeted, 0);
}

TEST(an_ask_that_is_none_ends_the_connection) {
  Rig rig;
  for (std::size_t at : {0, 4, 15, 23, 28}) {
    Bytes said = bytes_of(pack(ChunkKey{3, 2, 0}));
    said[at] ^= std::byte{0x80};
    Wire wire = rig.greet();
    wire.ask({3, 2, 0});
    check_answer(wire, {3, 2, 0}, {});
    wire.send(said);
    CHECK(wire.is_hung_up());
  }
}

TEST(a_peer_that_leaves_after_any_byte_harms_nobody) {
  Rig rig;
  const Bytes content = frame_of(100, 5);
  rig.put({3, 2, 0}, content);
  const Bytes all = bytes_of(pack(Greeting{kToken, 0})) + bytes_of(pack(ChunkKey{3, 2, 0}));
  Wire good = rig.greet();
  for (std::size_t length = 0; length <= all.size(); ++length) {
    Wire wire = rig.connect();
    wire.send({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(length)});
    if (length % 2 == 0) wire.finish();
    wire.hang_up();
  }
  good.ask({3, 2, 0});
  check_answer(good, {3, 2, 0}, content);
  rig.advance_until(0, [&] { return rig.server->stats().connections == 1; });
}

TEST(so_many_connections_and_no_more) {
  Rig rig{{.connections_max = 64}};
  rig.put({3, 2, 0}, frame_of(5000, 5));
  std::vector<Wire> wires;
  for (int i = 0; i < 64; ++i) wires.push_back(rig.greet());
  Wire late = rig.connect();
  CHECK(late.is_hung_up());
  for (int round = 0; round < 3; ++round) {
    for (Wire& wire : wires) wire.ask({3, 2, 0});
    for (Wire& wire : wires) check_answer(wire, {3, 2, 0}, frame_of(5000, 5));
  }
  wires.pop_back();
  rig.advance_until(0, [&] { return rig.server->stats().connections == 63; });
  Wire next = rig.greet();
  next.ask({3, 2, 0});
  check_answer(next, {3, 2, 0}, frame_of(5000, 5));
}

TEST(who_has_not_greeted_makes_room_for_who_comes) {
  Rig rig{{.connections_max = 4}};
  rig.put({3, 2, 0}, frame_of(50, 5));
  Wire known = rig.greet();
  std::vector<Wire> silent;
  for (std::uint32_t count = 2; count <= 4; ++count) {
    rig.clock->advance(kMs);
    silent.push_back(rig.connect());
    rig.advance_until(0, [&] { return rig.server->stats().connections == count; });
  }
  Wire late = rig.greet();
  CHECK(silent[0].is_hung_up());
  CHECK_EQ(rig.server->stats().turned_away, 1);
  silent[2].send(bytes_of(pack(Greeting{kToken, 0})));
  CHECK(silent[2].receive(kHelloBytes) == bytes_of(pack_hello()));
  for (Wire* wire : {&known, &late, &silent[2]}) {
    wire->ask({3, 2, 0});
    check_answer(*wire, {3, 2, 0}, frame_of(50, 5));
  }
}

TEST(who_takes_nothing_is_dropped_and_delays_nobody) {
  Rig rig{{.limits = {
               .greeting_ns = kSecond, .idle_ns = kNever, .send_ns = 30 * kSecond, .park_ns = 0}}};
  const Bytes content = frame_of(kFrameBytesMax, 5);
  rig.put({3, 2, 0}, content);
  Wire stalled = rig.greet();
  for (int i = 0; i < 40; ++i) stalled.ask({3, 2, 0});
  Wire good = rig.greet();
  for (int i = 0; i < 4; ++i) {
    good.ask({3, 2, 0});
    check_answer(good, {3, 2, 0}, content);
  }
  CHECK_EQ(rig.server->stats().connections, 2);
  rig.advance_until(10 * kSecond, [&] { return rig.server->stats().connections == 1; });
  good.ask({3, 2, 0});
  check_answer(good, {3, 2, 0}, content);
}

TEST(who_says_nothing_is_hung_up_on_in_time) {
  Rig rig{
      {.limits = {
           .greeting_ns = 5 * kSecond, .idle_ns = 60 * kSecond, .send_ns = kSecond, .park_ns = 0}}};
  Wire silent = rig.connect();
  Wire halfway = rig.connect();
  halfway.send({std::byte{'R'}});
  Wire idle = rig.greet();
  rig.advance_until(0, [&] { return rig.server->stats().connections == 3; });
  // The clock stands still while the server is awaited, however slow a turn is.
  rig.clock->advance(4 * kSecond);
  rig.ask_now(idle);
  CHECK_EQ(rig.server->stats().connections, 3);
  rig.clock->advance(kSecond);
  rig.advance_until(0, [&] { return rig.server->stats().connections == 1; });
  CHECK(silent.is_hung_up() && halfway.is_hung_up());
  for (int ask = 0; ask < 2; ++ask) {
    rig.clock->advance(58 * kSecond);
    rig.ask_now(idle);
  }
  rig.clock->advance(60 * kSecond);
  rig.advance_until(0, [&] { return rig.server->stats().connections == 0; });
  CHECK(idle.is_hung_up());
}

TEST(asks_for_what_is_not_there_wait_for_it) {
  Rig rig{{.limits = {.greeting_ns = kSecond,
                      .idle_ns = kSecond,
                      .send_ns = kSecond,
                      .park_ns = 10 * kSecond}}};
  ChunkShelf& shelf = rig.server->shelf();
  Wire one = rig.greet(), two = rig.greet();
  rig.put({3, 2, 4}, frame_of(70, 4));
  for (Wire* wire : {&one, &two}) {
    for (std::uint32_t tile = 0; tile < 5; ++tile) wire->ask({3, 2, tile});
    check_answer(*wire, {3, 2, 4}, frame_of(70, 4));  // so the four before it are awaited
  }
  std::set<ChunkKey> misses;
  while (misses.size() < 4) {
    const auto taken = shelf.take_misses(kLongNs, 99);
    CHECK(!taken.empty());
    for (const ChunkKey& key : taken) CHECK(misses.insert(key).second);
  }
  rig.put({3, 2, 2}, frame_of(50, 2));  // not in the order of the requests
  shelf.refuse({3, 2, 0});
  for (Wire* wire : {&one, &two}) {
    // Requests settled in one turn are answered in the order of keys, in two turns in the order of
    // turns.
    std::set<std::uint32_t> tiles;
    for (int i = 0; i < 2; ++i) {
      const ChunkAnswer answer = wire->answer();
      tiles.insert(answer.key.tile);
      CHECK_EQ(answer.nbytes, answer.key.tile == 2 ? 50 : 0);
      CHECK(wire->receive(answer.nbytes) == frame_of(answer.nbytes, 2));
    }
    CHECK((tiles == std::set<std::uint32_t>{0, 2}));
  }
  one.hang_up();
  rig.advance_until(0, [&] { return rig.server->stats().connections == 1; });
  CHECK_EQ(shelf.give({3, 2, 1}, shared(frame_of(60, 1))).take(), 1);
  check_answer(two, {3, 2, 1}, frame_of(60, 1));
  rig.advance_until(kSecond,
                    [&] { return shelf.sent_bytes() > 0 && rig.clock->now_ns() > 11 * kSecond; });
  check_answer(two, {3, 2, 3}, {});
}

TEST(an_ask_that_waited_long_enough_is_answered_in_the_turn_that_sees_it) {
  Rig rig{{.limits = {.greeting_ns = kSecond,
                      .idle_ns = kSecond,
                      .send_ns = kSecond,
                      .park_ns = 10 * kSecond}},
          false};
  ChunkServer& server = *rig.server;
  Wire wire = rig.connect();
  wire.send(bytes_of(pack(Greeting{kToken, 0})));
  wire.ask({3, 2, 0});
  while (server.shelf().take_misses(0, 1).empty()) server.turn(kMs);
  CHECK_EQ(wire.drain(), kHelloBytes);
  rig.clock->advance(10 * kSecond);
  server.turn(0);  // there is no other until somebody sends something
  CHECK_EQ(wire.drain(), kAnswerBytes);
}

TEST(more_asks_than_may_be_outstanding_wait_in_the_socket) {
  Rig rig;
  constexpr int kAsks = 5000;
  rig.put({3, 2, 0}, frame_of(3000, 1));
  Wire wire = rig.greet();
  std::thread asker{[&] {
    for (int i = 0; i < kAsks; ++i) wire.ask({3, 2, i % 2 == 0 ? 0U : 1U});
  }};
  for (int i = 0; i < kAsks; ++i) {
    if (i % 2 == 0) check_answer(wire, {3, 2, 0}, frame_of(3000, 1));
    if (i % 2 == 1) check_answer(wire, {3, 2, 1}, {});
  }
  asker.join();
}

TEST(few_frames_are_made_for_a_peer_that_has_asked_for_many) {
  Rig rig{
      {.limits = {
           .greeting_ns = kLongNs, .idle_ns = kLongNs, .send_ns = kLongNs, .park_ns = kLongNs}}};
  ChunkShelf& shelf = rig.server->shelf();
  constexpr std::uint32_t kAsks = 100;
  const Frame frame = shared(frame_of(2 << 20, 1));
  Wire wire = rig.greet();
  for (std::uint32_t tile = 0; tile < kAsks; ++tile) wire.ask({3, -1, tile});
  std::uint32_t made = 0;
  const auto make = [&](Nanoseconds wait_ns) {
    const auto misses = shelf.take_misses(wait_ns, 99);
    CHECK(misses.size() <= ChunkPeer::kParkedMax);
    for (const ChunkKey& key : misses) made += shelf.give(key, frame).take();
    return !misses.empty();
  };
  while (make(kSecond / 2)) {
  }
  // The rest are in buffers of the socket, of at most 16 MiB.
  CHECK(made < kAsks / 2);
  std::thread maker{[&] {
    while (made < kAsks) make(kLongNs);
  }};
  for (std::uint32_t i = 0; i < kAsks; ++i) {
    CHECK_EQ(wire.answer().nbytes, 2U << 20);
    CHECK_EQ(wire.receive(2 << 20).size(), 2U << 20);
  }
  maker.join();
}

TEST(all_together_get_no_more_than_the_pace) {
  constexpr std::uint64_t kRate = 1'000'000, kBurst = 64 << 10;
  Rig rig{{.bytes_per_s = kRate, .burst_bytes = kBurst}, false};
  ChunkServer& server = *rig.server;
  rig.put({3, 2, 0}, frame_of(1 << 20, 1));
  std::vector<Wire> wires;
  for (int i = 0; i < 3; ++i) {
    Wire wire = rig.connect();
    wire.send(bytes_of(pack(Greeting{kToken, 0})));
    for (int ask = 0; ask < 4; ++ask) wire.ask({3, 2, 0});
    wires.push_back(std::move(wire));
  }
  std::vector<std::size_t> got(wires.size(), 0);
  std::size_t all = 0;
  const auto pump = [&] {
    for (int quiet = 0; quiet < 4;) {
      const std::uint64_t before = server.stats().wire_bytes;
      server.turn(0);
      for (std::size_t i = 0; i < wires.size(); ++i) got[i] += wires[i].drain();
      quiet = server.stats().wire_bytes == before ? quiet + 1 : 0;
    }
    all = got[0] + got[1] + got[2];
  };
  pump();
  CHECK(server.stats().wire_bytes <= kBurst);
  const Nanoseconds began_ns = rig.clock->now_ns();
  for (int step = 0; step < 100; ++step) {
    rig.clock->advance(20 * kMs);
    pump();
    const auto spent_ns = static_cast<std::uint64_t>(rig.clock->now_ns() - began_ns);
    CHECK(server.stats().wire_bytes <= kBurst + kRate * spent_ns / 1'000'000'000);
    CHECK(all <= server.stats().wire_bytes);
  }
  CHECK(server.stats().wire_bytes >= 2 * kRate);            // two seconds
  for (const std::size_t one : got) CHECK(one >= all / 4);  // nobody is left behind

  // Can be changed while it runs: as slow as 16 KiB a second, then unlimited.
  CHECK(server.set_pace(16 << 10, 16 << 10).ok());
  pump();
  const std::uint64_t before = server.stats().wire_bytes;
  rig.clock->advance(2 * kSecond);
  pump();
  CHECK(server.stats().wire_bytes <= before + (16 << 10));
  CHECK(server.set_pace(0, 16 << 10).ok());
  for (int i = 0; i < 1000 && all < 12 << 20; ++i) pump();
  CHECK_EQ(all, 3 * (kHelloBytes + 4 * (kAnswerBytes + (1 << 20))));
  CHECK(server.set_pace(1, 100).code() == Code::kInvalidArgument);
}

TEST(a_frame_that_is_being_sent_goes_out_whole_when_it_is_forgotten) {
  Rig rig;
  const Bytes content = frame_of(kFrameBytesMax, 5);
  rig.put({3, 2, 0}, content);
  Wire wire = rig.greet();
  Bytes asks;
  for (int i = 0; i < 8; ++i) asks = asks + bytes_of(pack(ChunkKey{3, 2, 0}));
  wire.send(asks);  // they arrive together: all are read before the first answer
  const ChunkAnswer first = wire.answer();
  rig.advance_until(0, [&] { return rig.server->stats().wire_bytes > (1 << 20); });
  CHECK(wire.receive(first.nbytes) == content);
  rig.server->shelf().forget(3, 2);
  int kept = 0;
  for (int i = 1; i < 8; ++i) {
    const ChunkAnswer answer = wire.answer();
    CHECK(answer.nbytes == 0 || wire.receive(answer.nbytes) == content);
    kept += answer.nbytes > 0;
  }
  CHECK(kept > 0);
  wire.ask({3, 2, 0});
  check_answer(wire, {3, 2, 0}, {});
}

TEST(closing_breaks_off_and_can_be_repeated) {
  Rig rig;
  Wire wire = rig.greet();
  rig.server->close();
  CHECK(wire.is_hung_up());
  rig.server->close();
}

TEST(eight_threads_close_it_at_once) {
  for (int round = 0; round < 20; ++round) {
    Rig rig;
    Wire wire = rig.greet();
    rose::test::from_eight_threads([&] {
      rig.server->close();
      CHECK_EQ(rig.server->stats().connections, 0U);
    });
    CHECK(wire.is_hung_up());
  }
}

TEST(what_cannot_be_served_is_said) {
  const auto clock = std::make_shared<ManualClock>();
  Rig rig;
  ChunkServerConfig config{.host = "127.0.0.1", .port = rig.server->port()};
  CHECK(ChunkServer::create(config, clock).status().code() == Code::kUnavailable);
  config = {.host = "no.such.host.invalid"};
  CHECK(ChunkServer::create(config, clock).status().code() == Code::kUnavailable);
  config = {.host = "127.0.0.1", .connections_max = 0};
  CHECK(ChunkServer::create(config, clock).status().code() == Code::kInvalidArgument);
  config = {.host = "127.0.0.1", .burst_bytes = 1};
  CHECK(ChunkServer::create(config, clock).status().code() == Code::kInvalidArgument);
  CHECK(rig.server->start().code() == Code::kInvalidArgument);
}
