#include "compute/segment_timer.h"

namespace rose::compute {

Result<std::unique_ptr<SegmentTimer>> SegmentTimer::create(const driver::DevicePtr& device,
                                                           CUstream stream) noexcept {
  std::unique_ptr<SegmentTimer> timer{new SegmentTimer{stream}};
  for (Pair& pair : timer->pairs_) {
    for (std::unique_ptr<driver::Event>* event : {&pair.start, &pair.end}) {
      auto made = driver::Event::create(device, true);
      if (!made.ok()) return made.status();
      *event = made.take();
    }
  }
  return timer;
}

void SegmentTimer::start(std::uint32_t segments,
                         std::optional<std::uint32_t> close_epoch) noexcept {
  if (ended_ - taken_ == kPairs) return;
  Pair& pair = at(ended_);
  pair.segments = segments;
  pair.close_epoch = close_epoch;
  is_started_ = pair.start->record(stream_).ok();
}

void SegmentTimer::end() noexcept {
  if (!is_started_) return;
  is_started_ = false;
  if (at(ended_).end->record(stream_).ok()) ++ended_;
}

std::optional<SegmentTimer::Measured> SegmentTimer::take() noexcept {
  while (taken_ != ended_) {
    const Pair& pair = at(taken_);
    const Result<bool> done = pair.end->is_done();
    if (done.ok() && !done.value()) return std::nullopt;
    ++taken_;
    if (!done.ok()) continue;
    const Result<Nanoseconds> duration = pair.end->since(*pair.start);
    if (duration.ok()) return Measured{duration.value(), pair.segments, pair.close_epoch};
  }
  return std::nullopt;
}

}  // namespace rose::compute
