// Captures, memory operations inserted between captured work, and graphs that are launched
// repeatedly.
#include "driver/graph.h"

#include <array>
#include <thread>

#include "driver/fixture.h"
#include "driver/kernel_library.h"
#include "driver/stream.h"

using namespace rose;
using namespace rose::driver;
using namespace rose::test;

namespace {

// A stream, a kernel and some words.
struct Bench {
  DevicePtr device{open_device()};
  memory::Pool words{create_words(device).take()};
  std::unique_ptr<Stream> stream{Stream::create(device, StreamPriority::kLowest).take()};
  std::shared_ptr<const KernelLibrary> library{
      KernelLibrary::create(device, Fatbin{"layers", kCode}).take()};

  Status launch(const char* name) const {
    Result<CUkernel> kernel = library->kernel(name);
    if (!kernel.ok()) return kernel.status();
    return library->launch(kernel.value(), {.blocks = 1, .threads = 32}, stream->get());
  }
  CaptureState state() const { return capture_state(*device, stream->get()).take(); }
  Result<CUgraphNode> insert(std::span<MemoryOperation> operations) const {
    return insert_mem_ops(*device, stream->get(), operations);
  }
  Result<std::unique_ptr<Graph>> end() const { return Graph::end_capture(device, stream->get()); }
  Status begin() const { return Graph::begin_capture(*device, stream->get()); }
};

// The number of executed kernels by name, in order.
std::string executed() {
  std::string names;
  std::string line;
  for (const char* at = fake().kernels(); *at != '\0'; ++at) {
    line += *at;
    if (*at != '\n') continue;
    names += line.substr(0, line.find(' ')) + " ";
    line.clear();
  }
  return names;
}

}  // namespace

TEST(inserted_wait_stands_between_what_was_captured_before_and_after) {
  {
    const Bench bench;
    CHECK(bench.state() == CaptureState::kNone);
    CHECK(bench.begin().ok());
    CHECK(bench.state() == CaptureState::kActive);
    CHECK(bench.launch("first").ok());
    std::array gate{wait_for(address_of(bench.words, 0), 1),
                    wait_for(address_of(bench.words, 1), 2, kWaitAnd)};
    CHECK(bench.insert(gate).ok());
    CHECK(bench.launch("second").ok());
    Result<std::unique_ptr<Graph>> graph = bench.end();
    CHECK_EQ(says(graph.status()), "");
    CHECK(bench.state() == CaptureState::kNone);
    CHECK_EQ(executed(), "");
    CHECK(graph.value()->launch(bench.stream->get()).ok());
    CHECK_EQ(executed(), "first ");
    word(bench.words, 0) = 1;
    fake().pump();
    CHECK_EQ(executed(), "first ");
    word(bench.words, 1) = 3;
    fake().pump();
    CHECK_EQ(executed(), "first second ");
    CHECK(bench.stream->wait(0).ok());
  }
  check_clean();
}

TEST(inserted_write_comes_after_all_that_was_captured) {
  {
    const Bench bench;
    std::array gate{wait_for(address_of(bench.words, 0), 1)};
    std::array mark{write(address_of(bench.words, 1), 7)};
    CHECK(bench.begin().ok());
    CHECK(bench.insert(gate).ok());
    CHECK(bench.launch("between").ok());
    CHECK(bench.insert(mark).ok());
    const std::unique_ptr<Graph> graph = bench.end().take();
    CHECK(graph->launch(bench.stream->get()).ok());
    CHECK_EQ(word(bench.words, 1), 0);
    word(bench.words, 0) = 1;
    fake().pump();
    CHECK_EQ(word(bench.words, 1), 7);
  }
  check_clean();
}

TEST(update_counts_from_the_next_launch_on) {
  {
    const Bench bench;
    std::array gate{wait_for(address_of(bench.words, 0), 1)};
    CHECK(bench.begin().ok());
    Result<CUgraphNode> node = bench.insert(gate);
    CHECK(bench.launch("after").ok());
    const std::unique_ptr<Graph> graph = bench.end().take();
    CHECK(graph->launch(bench.stream->get()).ok());
    gate[0].value = 2;
    CHECK(graph->update(node.value(), gate).ok());
    CHECK(graph->launch(bench.stream->get()).ok());
    word(bench.words, 0) = 1;
    fake().pump();
    CHECK_EQ(executed(), "after ");
    word(bench.words, 0) = 2;
    fake().pump();
    CHECK_EQ(executed(), "after after ");
  }
  check_clean();
}

TEST(stream_is_usable_after_an_invalidated_capture) {
  {
    const Bench bench;
    std::array gate{wait_for(address_of(bench.words, 0), 1)};
    CHECK(bench.begin().ok());
    CHECK(bench.launch("lost").ok());
    fake().invalidate(bench.stream->get());
    CHECK(bench.state() == CaptureState::kInvalidated);
    const Status late = bench.insert(gate).status();
    CHECK_EQ(says(late), "the capture was invalidated by an earlier call");
    CHECK(late.code() == Code::kUnavailable);
    CHECK_EQ(says(bench.end().status()),
             "cuStreamEndCapture: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901): the capture was "
             "invalidated");
    CHECK(bench.state() == CaptureState::kNone);
    CHECK(bench.launch("kept").ok());
    CHECK(bench.stream->wait(0).ok());
    CHECK_EQ(executed(), "kept ");
  }
  check_clean();
}

TEST(capture_that_cannot_become_a_graph_leaves_nothing) {
  {
    const Bench bench;
    CHECK(bench.begin().ok());
    fake().fail("cuGraphInstantiateWithFlags", 1, kOutOfMemory);
    CHECK(bench.end().status().code() == Code::kOutOfMemory);
    CHECK(std::string{fake().live()}.find("graphs") == std::string::npos);
    CHECK(bench.stream->wait(0).ok());
  }
  check_clean();
}

TEST(nothing_is_inserted_where_nothing_is_captured) {
  {
    const Bench bench;
    std::array gate{wait_for(address_of(bench.words, 0), 1)};
    const Status status = bench.insert(gate).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_EQ(says(status), "the stream is not being captured");
    CHECK(bench.insert({}).status().code() == Code::kInvalidArgument);
    CHECK_EQ(says(bench.insert({}).status()), "the list of memory operations must not be empty");
    CHECK(bench.end().status().code() == Code::kUnavailable);
  }
  check_clean();
}

TEST(capture_restricts_no_other_thread) {
  {
    const Bench bench;
    CHECK(bench.begin().ok());
    // 1: calls that are unsafe in a capture are refused in this thread only, not in serving's.
    CHECK(std::string{fake().log()}.find("cuStreamBeginCapture(") != std::string::npos);
    const std::string log = fake().log();
    const std::size_t at = log.find("cuStreamBeginCapture(");
    CHECK(log.substr(at, log.find('\n', at) - at).ends_with(", 1) = 0"));
    std::thread other{[&] {
      Result<std::unique_ptr<Graph>> graph = bench.end();
      CHECK(graph.status().message().starts_with("cuStreamEndCapture: "));
    }};
    other.join();
    CHECK(bench.end().ok());
  }
  check_clean();
}
