#include "driver/stream.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace rose::driver {

namespace {

// Polling periods: short enough to add little to a wait, long enough not to occupy a core.
constexpr Nanoseconds kFirstSleep = 20'000;
constexpr Nanoseconds kLongestSleep = 1'000'000;

Result<bool> is_ready(const Driver& driver, const char* call, Answer answer) noexcept {
  if (answer == kNotReady) return false;
  ROSE_TRY(driver.status(call, answer));
  return true;
}

// A smaller number runs first.
int number_of(StreamPriority priority, const Device::PriorityRange& range) noexcept {
  switch (priority) {
    case StreamPriority::kLowest:
      return range.lowest;
    case StreamPriority::kAboveLowest:
      return std::max(range.lowest - 1, range.highest);
    case StreamPriority::kHighest:
      break;
  }
  return range.highest;
}

}  // namespace

// ---- streams

Result<std::unique_ptr<Stream>> Stream::create(DevicePtr device, StreamPriority priority) noexcept {
  const Result<Device::PriorityRange> range = device->priority_range();
  if (!range.ok()) return range.status();
  const int number = number_of(priority, range.value());
  const Current current{*device};
  ROSE_TRY(current.status());
  CUstream stream = nullptr;
  ROSE_TRY(
      ROSE_CU(device->driver(), cuStreamCreateWithPriority, &stream, kStreamNonBlocking, number));
  return std::unique_ptr<Stream>{new Stream{device, stream}};
}

// Returns at once: the driver frees the stream when its work has ended.
Stream::~Stream() {
  const Current current{*device_};
  device_->driver().entries().cuStreamDestroy(stream_);
}

Result<int> Stream::priority() const noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  int number = 0;
  ROSE_TRY(ROSE_CU(device_->driver(), cuStreamGetPriority, stream_, &number));
  return number;
}

Result<bool> Stream::is_idle() const noexcept { return driver::is_idle(*device_, stream_); }

Status Stream::wait(Nanoseconds timeout_ns) const noexcept {
  const BootClock clock;
  const Nanoseconds deadline_ns = clock.now_ns() + timeout_ns;
  Nanoseconds sleep_ns = kFirstSleep;
  while (true) {
    const Result<bool> idle = is_idle();
    if (!idle.ok()) return idle.status();
    if (idle.value()) return {};
    const Nanoseconds left_ns = deadline_ns - clock.now_ns();
    if (left_ns <= 0) {
      return Status::deadline_exceeded("the stream has work left after " +
                                       std::to_string(timeout_ns / 1'000'000) + " ms");
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds{std::min(sleep_ns, left_ns)});
    sleep_ns = std::min(2 * sleep_ns, kLongestSleep);
  }
}

Result<bool> is_idle(const Device& device, CUstream stream) noexcept {
  const Current current{device};
  ROSE_TRY(current.status());
  const Driver& driver = device.driver();
  return is_ready(driver, "cuStreamQuery", driver.entries().cuStreamQuery(stream));
}

Result<bool> is_capturing(const Device& device, CUstream stream) noexcept {
  const Current current{device};
  ROSE_TRY(current.status());
  int status = kCaptureStatusNone;
  std::uint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* last = nullptr;
  const GraphEdge* edges = nullptr;
  std::size_t last_count = 0;
  ROSE_TRY(ROSE_CU(device.driver(), cuStreamGetCaptureInfo, stream, &status, &id, &graph, &last,
                   &edges, &last_count));
  return status != kCaptureStatusNone;
}

// ---- events

Result<std::unique_ptr<Event>> Event::create(DevicePtr device, bool has_timing) noexcept {
  const Current current{*device};
  ROSE_TRY(current.status());
  CUevent event = nullptr;
  ROSE_TRY(ROSE_CU(device->driver(), cuEventCreate, &event,
                   has_timing ? kEventDefault : kEventDisableTiming));
  return std::unique_ptr<Event>{new Event{device, event, has_timing}};
}

Event::~Event() {
  const Current current{*device_};
  device_->driver().entries().cuEventDestroy(event_);
}

Status Event::record(CUstream stream) noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  return ROSE_CU(device_->driver(), cuEventRecord, event_, stream);
}

Result<bool> Event::is_done() const noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  const Driver& driver = device_->driver();
  return is_ready(driver, "cuEventQuery", driver.entries().cuEventQuery(event_));
}

Result<Nanoseconds> Event::since(const Event& earlier) const noexcept {
  if (!has_timing_ || !earlier.has_timing_) {
    return Status::invalid_argument("both events must be created with has_timing");
  }
  const Current current{*device_};
  ROSE_TRY(current.status());
  float ms = 0;
  const Driver& driver = device_->driver();
  const Answer answer = driver.entries().cuEventElapsedTime(&ms, earlier.event_, event_);
  if (answer == kInvalidHandle) {
    return Status::invalid_argument("both events must be recorded first");
  }
  ROSE_TRY(driver.status("cuEventElapsedTime", answer));
  return static_cast<Nanoseconds>(static_cast<double>(ms) * 1e6);
}

}  // namespace rose::driver
