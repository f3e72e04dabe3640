// Contexts that a worker caches for trajectories that may return.
#pragma once

#include <cstdint>
#include <vector>

namespace rose::scheduler {

// Id of a cache on its worker; > 0 and ascending.
using CacheId = std::int64_t;
inline constexpr CacheId kNoCache = 0;
inline constexpr CacheId kForgotten = -1;

// Contexts of trajectories between two turns, least recently used first: engines evict them in that
// order when turns need the memory. Contexts of trajectories that are over are not listed. Engines
// cannot tell which trajectories are over, so they may evict the context of a live one first.
//
// Invariants:
//   1. Ids ascend and are unique.
//   2. tokens() is the sum over all caches.
class Caches {
 public:
  CacheId put(std::int64_t tokens);
  bool has(CacheId id) const noexcept;
  // Removes a cache that a turn uses again, or whose trajectory is over. Does nothing if the cache
  // was evicted.
  void remove(CacheId id) noexcept;
  // Evicts the least recently used caches until at most `tokens` tokens are left.
  void shrink_to(std::int64_t tokens) noexcept;
  void clear() noexcept;

  std::int64_t tokens() const noexcept { return tokens_; }
  std::int64_t count() const noexcept { return static_cast<std::int64_t>(kept_.size()); }

  template <typename Image>
  void image(Image& image) {
    image(kept_, last_, tokens_);
  }

 private:
  struct Kept {
    CacheId id{kNoCache};
    std::int64_t tokens{0};

    template <typename Image>
    void image(Image& image) {
      image(id, tokens);
    }
  };

  std::vector<Kept>::const_iterator find(CacheId id) const noexcept;

  std::vector<Kept> kept_;
  CacheId last_{kNoCache};
  std::int64_t tokens_{0};
};

}  // namespace rose::scheduler
