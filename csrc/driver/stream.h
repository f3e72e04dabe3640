// Streams of rose's own, with a priority, and events that mark a place in one.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "base/clock.h"
#include "driver/device.h"

namespace rose::driver {

// Lower numbers run first: serving takes the highest priority, and 0, the default of everybody
// else, is the lowest. Never a stream of torch's pools: those come round again after 32.
enum class Priority { kLowest, kHighest };

// Owns one non-blocking stream. Any thread.
class Stream {
 public:
  static Result<std::unique_ptr<Stream>> create(DevicePtr device, Priority priority) noexcept;
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream get() const noexcept { return stream_; }
  const DevicePtr& device() const noexcept { return device_; }
  Result<int> priority() const noexcept;
  // Whether all work so far is done. Never waits.
  Result<bool> is_idle() const noexcept;
  // Polls, with short sleeps, until idle; DeadlineExceeded after `timeout_ns`. Waits for this
  // stream only: nothing in rose synchronises a device.
  Status wait(Nanoseconds timeout_ns) const noexcept;
  // Puts a copy of `from` to the device's `to` into the stream. The bytes must stay as they are
  // until the stream has passed the copy; page-locked, it does not wait, else the driver may.
  Status copy_from_host(DevicePointer to, std::span<const std::byte> from) const noexcept;

 private:
  Stream(DevicePtr device, CUstream stream) noexcept
      : device_{std::move(device)}, stream_{stream} {}

  DevicePtr device_;
  CUstream stream_;
};

// Owns one event: the completion of what was in a stream when it was recorded. Any thread.
class Event {
 public:
  static Result<std::unique_ptr<Event>> create(DevicePtr device, bool has_timing) noexcept;
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  CUevent get() const noexcept { return event_; }
  // Borrowed streams come from torch, so a raw handle.
  Status record(CUstream stream) noexcept;
  // Whether what was recorded is done; true before the first record. Never waits.
  Result<bool> is_done() const noexcept;
  // From `earlier` to this one. InvalidArgument unless both have timing and both are recorded,
  // Unavailable until both are done.
  Result<Nanoseconds> since(const Event& earlier) const noexcept;

 private:
  Event(DevicePtr device, CUevent event, bool has_timing) noexcept
      : device_{std::move(device)}, event_{event}, has_timing_{has_timing} {}

  DevicePtr device_;
  CUevent event_;
  bool has_timing_;
};

}  // namespace rose::driver
