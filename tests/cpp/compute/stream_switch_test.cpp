// The borrower's segments on more than one stream of the fake device, which is a thread: their
// order, their numbers, and what is left when a switch fails.
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "compute/stream_rig.h"
#include "driver/green_context.h"

using namespace rose;
using namespace rose::compute;
using namespace rose::test;
using rose::driver::GreenContext;

namespace {

// A rig whose borrower has a share of the device too, and kernels that tell where they ran.
struct TwoStreams : Rig {
  explicit TwoStreams(StreamGateConfig config = {.window = 8}) : Rig{std::move(config)} {
    confined = GreenContext::create(device, 16).take()->create_stream(Priority::kLowest).take();
    library = gate_kernels();
    segment = library->kernel("segment").value();
  }
  ~TwoStreams() {
    fake().release(confined->get());
    fake().release(stream->get());
    const Running runs;
    borrower.reset();  // before the stream that its segments are in
  }

  void put() {
    CHECK_EQ(pass(), Verdict::kPassed);
    CHECK(library->launch(segment, {}, borrower->stream()).ok());
  }
  Status use(const Stream& one) { return borrower->use_stream(one.get()); }

  std::unique_ptr<Stream> confined;
  std::shared_ptr<const KernelLibrary> library;
  CUkernel segment{nullptr};
};

// The streams that kernels ran in, in the order in which they ran.
std::vector<std::string> places() {
  std::istringstream lines{fake().kernels()};
  std::vector<std::string> out;
  for (std::string line; std::getline(lines, line);) out.push_back(line.substr(line.find("0x")));
  return out;
}

std::string hex(const Stream& stream) {
  std::ostringstream text;
  text << "0x" << std::hex << reinterpret_cast<std::uintptr_t>(stream.get());
  return text.str();
}

}  // namespace

TEST(segments_run_in_the_order_of_their_numbers_on_whichever_stream) {
  TwoStreams rig;
  rig.open(6);
  fake().hold(rig.stream->get());  // what is in the first stream cannot run now
  rig.put();
  CHECK(rig.use(*rig.confined).ok());
  CHECK_EQ(rig.borrower->stream(), rig.confined->get());
  rig.put();
  rig.put();
  fake().pump();
  CHECK_EQ(rig.gate->passed(), 0);
  CHECK_EQ(places().size(), 0);
  CHECK(rig.use(*rig.stream).ok());
  rig.put();
  fake().release(rig.stream->get());
  CHECK_EQ(rig.gate->passed(), 4);
  const std::string plain = hex(*rig.stream);
  const std::string share = hex(*rig.confined);
  CHECK_EQ(places(), (std::vector<std::string>{plain, share, share, plain}));
  CHECK_EQ(rig.borrower->in_flight(), 0);
}

TEST(switch_waits_for_nothing_and_drains_nothing) {
  TwoStreams rig;
  rig.open(0);
  rig.put();
  fake().pump();
  const unsigned queries = fake().calls("cuStreamQuery");
  CHECK(rig.use(*rig.confined).ok());
  CHECK_EQ(fake().calls("cuStreamQuery"), queries);
  CHECK_EQ(rig.borrower->in_flight(), 1);
  CHECK(!rig.gate->is_draining());
  CHECK(rig.gate->is_open());
}

TEST(switch_to_the_same_stream_is_nothing) {
  TwoStreams rig;
  fake().reset();
  CHECK(rig.use(*rig.stream).ok());
  CHECK_EQ(std::string{fake().log()}, "");
}

TEST(abort_after_a_switch_waits_for_both_streams) {
  TwoStreams rig{{.window = 8, .drain_ns = kShortNs}};
  rig.borrower->begin_step();
  rig.open(0);
  rig.put();
  CHECK(rig.use(*rig.confined).ok());
  rig.put();
  fake().hold(rig.stream->get());
  rig.gate->close(CloseReason::kRevocation);
  CHECK(rig.gate->abort_step());
  CHECK_EQ(rig.pass(), Verdict::kTimedOut);
  CHECK_EQ(rig.borrower->drain_timeouts(), 1);
  CHECK_EQ(rig.gate->passed(), 0);
  fake().release(rig.stream->get());
  const Running device;
  CHECK_EQ(rig.pass(kLongNs), Verdict::kAborted);
  CHECK_EQ(rig.gate->passed(), 2);
  CHECK_EQ(places().size(), 2);
}

TEST(segment_is_timed_on_the_stream_it_is_in) {
  TwoStreams rig;
  rig.borrower->begin_step();
  rig.open(3);
  rig.put();
  CHECK(rig.use(*rig.confined).ok());
  rig.put();
  rig.borrower->leave();
  fake().pump();
  rig.borrower->leave();
  CHECK_EQ(rig.gate->drain_segments().size(), 2);
}

TEST(stream_that_is_captured_is_not_switched_to_or_from) {
  TwoStreams rig;
  for (Stream* captured : {rig.stream.get(), rig.confined.get()}) {
    CHECK(Graph::begin_capture(*rig.device, captured->get()).ok());
    const Status refused = rig.use(*rig.confined);
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK_EQ(rig.borrower->stream(), rig.stream->get());
    // A driver that is asked to wait there ends the capture.
    CHECK_EQ(fake().calls("cuStreamWaitEvent"), 0);
    CHECK(Graph::end_capture(rig.device, captured->get()).ok());
  }
}

TEST(failing_switch_leaves_the_segments_where_they_were) {
  TwoStreams rig;
  rig.open(2);
  for (const char* call : {"cuEventRecord", "cuStreamWaitEvent"}) {
    fake().fail(call, 1, driver::kOutOfMemory);
    CHECK(says(rig.use(*rig.confined)).starts_with(call));
    CHECK_EQ(rig.borrower->stream(), rig.stream->get());
  }
  rig.put();
  fake().pump();
  CHECK_EQ(places(), std::vector<std::string>{hex(*rig.stream)});
}

TEST(window_that_the_launch_queue_cannot_take_is_refused) {
  Rig rig;
  const auto create = [&](std::uint32_t window, std::uint32_t launches) {
    return StreamGate::create(rig.device, HostGate::create(std::make_shared<BootClock>()).take(),
                              rig.stream->get(), GateKind::kMemop,
                              {.window = window, .launches = launches})
        .status();
  };
  CHECK(create(2, 508).ok());
  CHECK(create(64, 12).ok());
  const Status refused = create(2, 509);
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK_EQ(refused.message(),
           "2 segments of 509 launches do not fit the launch queue of 1024, so a closed gate would "
           "block the host: make the window smaller or the segments shorter");
  CHECK(!create(64, 13).ok());
  CHECK(!create(64, 0xFFFFFFFFU).ok());
}
