// The computed contexts that a worker keeps although no running turn uses them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/events.h"

namespace rose::sim {

// Evicts the least recently used contexts first, like prefix caches.
class PrefixStore {
 public:
  void put(scheduler::TrajectoryId id, std::int64_t tokens) {
    kept_.push_back({id, tokens});
    tokens_ += tokens;
  }

  // Removes a context, and returns its tokens; 0 if there is none.
  std::int64_t take(scheduler::TrajectoryId id) {
    const auto found =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.id == id; });
    if (found == kept_.end()) return 0;
    const std::int64_t tokens = found->tokens;
    tokens_ -= tokens;
    kept_.erase(found);
    return tokens;
  }

  void shrink_to(std::int64_t tokens_max) {
    auto first = kept_.begin();
    for (; first != kept_.end() && tokens_ > tokens_max; ++first) tokens_ -= first->tokens;
    kept_.erase(kept_.begin(), first);
  }

  void clear() noexcept {
    kept_.clear();
    tokens_ = 0;
  }

 private:
  struct Kept {
    scheduler::TrajectoryId id;
    std::int64_t tokens;
  };

  std::vector<Kept> kept_;  // least recently used first
  std::int64_t tokens_{0};
};

}  // namespace rose::sim
