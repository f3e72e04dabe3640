// Times segments on a device: an event before and after each, read once both are done.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "driver/stream.h"

namespace rose::compute {

// Never waits for the device and never fails a segment. A segment is not measured if no event pair
// is free or the driver refuses its events. One thread.
class SegmentTimer {
 public:
  // Exceeds the unread segments of any sensible window; beyond it, some are not measured.
  static constexpr std::uint32_t kPairs = 16;

  static Result<std::unique_ptr<SegmentTimer>> create(const driver::DevicePtr& device,
                                                      CUstream stream) noexcept;

  // Call start() after a gate, and end() before the next gate or at the end of the step.
  void start() noexcept;
  void end() noexcept;
  // Returns the oldest ended segment that was not taken yet.
  std::optional<Nanoseconds> take() noexcept;

 private:
  struct Pair {
    std::unique_ptr<driver::Event> start;
    std::unique_ptr<driver::Event> end;
  };

  explicit SegmentTimer(CUstream stream) noexcept : stream_{stream} {}
  Pair& at(std::uint32_t segment) noexcept { return pairs_[segment % kPairs]; }

  CUstream stream_;
  std::array<Pair, kPairs> pairs_;
  std::uint32_t ended_{0};
  std::uint32_t taken_{0};
  bool is_started_{false};
};

}  // namespace rose::compute
