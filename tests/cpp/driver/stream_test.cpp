// Streams and events: waits and their lengths.
#include "driver/stream.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "driver/fixture.h"

using namespace rose;
using namespace rose::driver;
using namespace rose::test;

namespace {

constexpr Nanoseconds kLong = 60'000'000'000;

Status issue(const Stream& stream, MemoryOperation operation) {
  const Current current{*stream.device()};
  return ROSE_CU(stream.device()->driver(), cuStreamBatchMemOp, stream.get(), 1, &operation, 0);
}

}  // namespace

TEST(streams_have_the_ends_of_the_range_and_do_not_block) {
  {
    const DevicePtr device = open_device();
    const auto serving = Stream::create(device, StreamPriority::kHighest).take();
    const auto rollout = Stream::create(device, StreamPriority::kLowest).take();
    CHECK_EQ(serving->priority().take(), -5);
    CHECK_EQ(rollout->priority().take(), 0);
    const std::string log = fake().log();
    CHECK(log.find(", 1, -5) = 0") != std::string::npos);
    CHECK(log.find(", 1, 0) = 0") != std::string::npos);
  }
  check_clean();
}

TEST(stream_is_idle_when_its_wait_is_over) {
  {
    const DevicePtr device = open_device();
    const memory::Pool words = create_words(device).take();
    const auto stream = Stream::create(device, StreamPriority::kLowest).take();
    CHECK(stream->is_idle().take());
    CHECK(issue(*stream, wait_for(address_of(words, 0), 5)).ok());
    CHECK(issue(*stream, write(address_of(words, 1), 9)).ok());
    CHECK(!stream->is_idle().take());
    word(words, 0) = 4;
    CHECK(!stream->is_idle().take());
    CHECK_EQ(word(words, 1), 0);
    word(words, 0) = 5;
    CHECK(stream->is_idle().take());
    CHECK_EQ(word(words, 1), 9);
  }
  check_clean();
}

TEST(wait_is_bounded) {
  {
    const DevicePtr device = open_device();
    const memory::Pool words = create_words(device).take();
    const auto stream = Stream::create(device, StreamPriority::kLowest).take();
    CHECK(issue(*stream, wait_for(address_of(words, 0), 1)).ok());
    const Status late = stream->wait(3'000'000);
    CHECK(late.code() == Code::kDeadlineExceeded);
    CHECK_EQ(says(late), "the stream has work left after 3 ms");
    CHECK(fake().calls("cuStreamQuery") > 1);
    word(words, 0) = 1;
    CHECK(stream->wait(kLong).ok());
  }
  check_clean();
}

TEST(wait_sees_what_another_thread_sets_off) {
  {
    const DevicePtr device = open_device();
    const memory::Pool words = create_words(device).take();
    const auto stream = Stream::create(device, StreamPriority::kLowest).take();
    const auto other = Stream::create(device, StreamPriority::kHighest).take();
    CHECK(issue(*stream, wait_for(address_of(words, 0), 1)).ok());
    std::thread opener{[&] { CHECK(issue(*other, write(address_of(words, 0), 1)).ok()); }};
    CHECK(stream->wait(kLong).ok());
    opener.join();
    CHECK(other->wait(kLong).ok());
  }
  check_clean();
}

TEST(any_thread_may_use_a_device) {
  {
    const DevicePtr device = open_device();
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&device] {
        for (int turn = 0; turn < 20; ++turn) {
          const auto stream = Stream::create(device, StreamPriority::kLowest).take();
          const auto event = Event::create(device, false).take();
          CHECK(event->record(stream->get()).ok());
          CHECK(event->is_done().take());
        }
        CHECK_EQ(fake().depth(), 0);
      });
    }
    for (std::thread& one : threads) one.join();
  }
  check_clean();
}

TEST(event_is_done_with_what_it_was_recorded_after) {
  {
    const DevicePtr device = open_device();
    const memory::Pool words = create_words(device).take();
    const auto stream = Stream::create(device, StreamPriority::kLowest).take();
    const auto start = Event::create(device, true).take();
    const auto end = Event::create(device, true).take();
    CHECK(end->is_done().take());  // before the first record
    CHECK(start->record(stream->get()).ok());
    CHECK(issue(*stream, wait_for(address_of(words, 0), 1)).ok());
    CHECK(end->record(stream->get()).ok());
    CHECK(start->is_done().take());
    CHECK(!end->is_done().take());
    CHECK(end->since(*start).status().code() == Code::kUnavailable);
    word(words, 0) = 1;
    CHECK(end->is_done().take());
    CHECK(end->since(*start).take() >= 0);
    CHECK(start->since(*end).take() <= 0);
  }
  check_clean();
}

TEST(event_without_time_says_so) {
  {
    const DevicePtr device = open_device();
    const auto timed = Event::create(device, true).take();
    const auto plain = Event::create(device, false).take();
    CHECK_EQ(says(plain->since(*timed).status()), "both events must be created with has_timing");
    CHECK(timed->since(*plain).status().code() == Code::kInvalidArgument);
    CHECK_EQ(says(timed->since(*timed).status()), "both events must be recorded first");
  }
  check_clean();
}

TEST(failed_work_shows_in_every_question) {
  {
    const DevicePtr device = open_device();
    const auto stream = Stream::create(device, StreamPriority::kLowest).take();
    const auto event = Event::create(device, false).take();
    fake().fail("cuStreamQuery", 1, 702);
    CHECK_EQ(says(stream->is_idle().status()),
             "cuStreamQuery: CUDA_ERROR_LAUNCH_TIMEOUT (702): the launch timed out and was "
             "terminated");
    fake().fail("cuStreamQuery", 1, 702);
    CHECK(stream->wait(kLong).code() == Code::kUnavailable);
    fake().fail("cuEventQuery", 1, 702);
    CHECK(event->is_done().status().code() == Code::kUnavailable);
  }
  check_clean();
}
