// How long segments take on a device: an event before and one after each, read when they are done.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "driver/stream.h"

namespace rose::compute {

// Never waits for the device and never fails a segment: one for which there is no free pair of
// events, or whose events the driver refuses, is not measured. One thread.
class SegmentTimer {
 public:
  // More than that many segments are not between their start and their reading with any sensible
  // window; of those beyond, some are not measured.
  static constexpr std::uint32_t kPairs = 16;

  static Result<std::unique_ptr<SegmentTimer>> create(const driver::DevicePtr& device,
                                                      CUstream stream) noexcept;

  // After a gate, and before the next or at the end of the step.
  void start() noexcept;
  void end() noexcept;
  // The oldest segment that has ended and was not taken yet.
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
