// Turns that wait get workers; turns that are stuck are freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/book.h"
#include "scheduler/placement.h"

namespace rose::scheduler {

// After place() no turn in the queue could be started: every worker lacks the room, the version or
// the lease, is avoided by that turn, or is kept for one that has starved.
class Dispatch {
 public:
  Dispatch(Book& book, Policy policy) noexcept : book_{book}, placement_{book.settings, policy} {}

  // Starts all that can start, in the order of the queue; a turn that does not fit lets smaller
  // ones behind it pass, until it has starved.
  void place();
  // Recalls turns of borrowed workers that show no progress, if others have room for them now.
  void rescue();

  Policy policy() const noexcept { return placement_.policy(); }
  template <typename Image>
  void image(Image& image) {
    image(place_at_ns_);
  }

 private:
  struct Promise {
    std::size_t slot;
    std::int64_t tokens;
  };

  Query query_of(const Trajectory& trajectory) const;
  std::optional<std::size_t> avoided_slot(const Trajectory& trajectory) const noexcept;
  // Keeps the worker that lacks least for a turn that has starved; nobody else starts there.
  void keep_for(const Query& query);
  double room_max(std::size_t job) const noexcept;
  void rescue_from(std::size_t slot);

  Book& book_;
  Placement placement_;
  Nanoseconds place_at_ns_{kNever};  // when a worker is no longer avoided
  std::vector<std::size_t> kept_;
  std::vector<double> too_large_;  // by job
  std::vector<Promise> promises_;
};

}  // namespace rose::scheduler
