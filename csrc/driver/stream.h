// Rose's own streams, with a priority, and events.
#pragma once

#include <memory>
#include <utility>

#include "base/clock.h"
#include "driver/device.h"

namespace rose::driver {

// Streams with a lower priority number run first. Serving gets the highest priority; 0, the default
// of all streams, is the lowest. Never use a stream of torch's pools: torch reuses its streams
// after 32.
//
// Streams share hardware connections within their priority. rose's copies and fills between the
// tenants have a priority of their own, so that they never queue behind a parked borrower.
enum class StreamPriority { kLowest, kAboveLowest, kHighest };

// Owns one non-blocking stream. Any thread.
class Stream {
 public:
  static Result<std::unique_ptr<Stream>> create(DevicePtr device, StreamPriority priority) noexcept;
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream get() const noexcept { return stream_; }
  const DevicePtr& device() const noexcept { return device_; }
  Result<int> priority() const noexcept;
  // True if all work enqueued so far is done. Never waits.
  Result<bool> is_idle() const noexcept;
  // Polls, with short sleeps, until idle; DeadlineExceeded after `timeout_ns`. Waits only for this
  // stream: nothing in rose synchronises a device.
  Status wait(Nanoseconds timeout_ns) const noexcept;

 private:
  Stream(DevicePtr device, CUstream stream) noexcept
      : device_{std::move(device)}, stream_{stream} {}

  DevicePtr device_;
  CUstream stream_;
};

// True if all work enqueued in `stream` so far is done. Never waits. The stream must not be
// capturing: the query would invalidate the capture.
Result<bool> is_idle(const Device& device, CUstream stream) noexcept;
// True if the stream is being captured. Unavailable before CUDA 12.3.
Result<bool> is_capturing(const Device& device, CUstream stream) noexcept;

// Owns one event, which completes when the work that preceded its record() in the stream is done.
// Any thread may use it.
class Event {
 public:
  static Result<std::unique_ptr<Event>> create(DevicePtr device, bool has_timing) noexcept;
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  CUevent get() const noexcept { return event_; }
  // Takes a raw handle, because the borrower's stream may come from torch.
  Status record(CUstream stream) noexcept;
  // True if the recorded work is done, or if nothing was recorded yet. Never waits.
  Result<bool> is_done() const noexcept;
  // Returns the time from `earlier` to this event. InvalidArgument unless both have timing and are
  // recorded; Unavailable until both are done.
  Result<Nanoseconds> since(const Event& earlier) const noexcept;

 private:
  Event(DevicePtr device, CUevent event, bool has_timing) noexcept
      : device_{std::move(device)}, event_{event}, has_timing_{has_timing} {}

  DevicePtr device_;
  CUevent event_;
  bool has_timing_;
};

}  // namespace rose::driver
