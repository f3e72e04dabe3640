// What a worker keeps for trajectories that may come back.
#pragma once

#include <cstdint>
#include <vector>

namespace rose::scheduler {

// The name of a cache among those of its worker; later ones are greater, and all above 0.
using CacheId = std::int64_t;
inline constexpr CacheId kNoCache = 0;
inline constexpr CacheId kForgotten = -1;

// Contexts of trajectories between two turns, the least lately used first: in that order engines
// forget them when turns need the memory. What nobody will come for is not here. Engines do not
// know of whom nobody comes, and may forget another first.
//
// Invariants:
//   1. Ids ascend, and none is given twice.
//   2. tokens() is the sum of all.
class Caches {
 public:
  CacheId put(std::int64_t tokens);
  bool has(CacheId id) const noexcept;
  // Whether a cache had the name, or has it.
  bool has_had(CacheId id) const noexcept { return id <= last_; }
  // A turn uses it again, or nobody will come for it. Nothing happens if it is forgotten already.
  void remove(CacheId id) noexcept;
  // Forgets the least lately used until the others have so many tokens.
  void shrink_to(std::int64_t tokens) noexcept;
  void clear() noexcept;

  std::int64_t tokens() const noexcept { return tokens_; }
  std::int64_t count() const noexcept { return static_cast<std::int64_t>(kept_.size()); }
  // 0 for one that is forgotten.
  std::int64_t tokens_of(CacheId id) const noexcept;

  template <typename Image>
  void image(Image& image) {
    image(kept_, last_, tokens_);
  }
  bool is_sound() const noexcept;

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
