#include "scheduler/caches.h"

#include <algorithm>

namespace rose::scheduler {

CacheId Caches::put(std::int64_t tokens) {
  kept_.push_back({++last_, tokens});
  tokens_ += tokens;
  return last_;
}

bool Caches::has(CacheId id) const noexcept { return find(id) != kept_.end(); }

void Caches::remove(CacheId id) noexcept {
  const auto found = find(id);
  if (found == kept_.end()) return;
  tokens_ -= found->tokens;
  kept_.erase(found);
}

void Caches::shrink_to(std::int64_t tokens) noexcept {
  auto first = kept_.begin();
  for (; first != kept_.end() && tokens_ > tokens; ++first) tokens_ -= first->tokens;
  kept_.erase(kept_.begin(), first);
}

void Caches::clear() noexcept {
  kept_.clear();
  tokens_ = 0;
}

std::vector<Caches::Kept>::const_iterator Caches::find(CacheId id) const noexcept {
  const auto found = std::lower_bound(kept_.begin(), kept_.end(), id,
                                      [](const Kept& kept, CacheId of) { return kept.id < of; });
  return found != kept_.end() && found->id == id ? found : kept_.end();
}

}  // namespace rose::scheduler
