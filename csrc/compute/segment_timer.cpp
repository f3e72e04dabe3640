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

void SegmentTimer::start() noexcept {
  if (ended_ - taken_ == kPairs) return;
  is_started_ = at(ended_).start->record(stream_).ok();
}

void SegmentTimer::end() noexcept {
  if (!is_started_) return;
  is_started_ = false;
  if (at(ended_).end->record(stream_).ok()) ++ended_;
}

std::optional<Nanoseconds> SegmentTimer::take() noexcept {
  while (taken_ != ended_) {
    const Pair& pair = at(taken_);
    const Result<bool> done = pair.end->is_done();
    if (done.ok() && !done.value()) return std::nullopt;
    ++taken_;
    if (!done.ok()) continue;
    const Result<Nanoseconds> duration = pair.end->since(*pair.start);
    if (duration.ok()) return duration.value();
  }
  return std::nullopt;
}

}  // namespace rose::compute
