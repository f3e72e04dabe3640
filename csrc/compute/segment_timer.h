// Times segments on a device by two events, one before and one after each segment.
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
  // Number of event pairs: more than a sensible window has in use at a time. A segment for which no
  // pair is free is not measured.
  static constexpr std::uint32_t kPairs = 16;

  struct Measured {
    Nanoseconds duration_ns;
    std::uint32_t segments;  // number of segments that this measurement covers
    // Close epoch at the start; set if a gate within the measurement may have waited for an
    // opening.
    std::optional<std::uint32_t> close_epoch;
  };

  static Result<std::unique_ptr<SegmentTimer>> create(const driver::DevicePtr& device,
                                                      CUstream stream) noexcept;

  // Call start() after a gate, and end() before the next gate or at the end of the step. A graph
  // with gates is one measurement of several segments.
  void start(std::uint32_t segments = 1,
             std::optional<std::uint32_t> close_epoch = std::nullopt) noexcept;
  void end() noexcept;
  // Discards the measurement that was started.
  void drop() noexcept { is_started_ = false; }
  // Returns the oldest ended measurement that was not taken yet.
  std::optional<Measured> take() noexcept;

 private:
  struct Pair {
    std::unique_ptr<driver::Event> start;
    std::unique_ptr<driver::Event> end;
    std::uint32_t segments{1};
    std::optional<std::uint32_t> close_epoch;
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
