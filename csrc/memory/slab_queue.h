// Slabs in the order of their last use.
#pragma once

#include <cstddef>
#include <vector>

#include "memory/shape.h"

namespace rose::memory {

// A list whose links are arrays: every call takes constant time and none allocates.
class SlabQueue {
 public:
  explicit SlabQueue(std::size_t slabs) noexcept : links_(slabs + 1) {}

  // The slab used longest ago, or kNoSlab.
  SlabId front() const noexcept { return end().next; }
  SlabId after(SlabId slab) const noexcept { return link(slab).next; }
  bool has(SlabId slab) const noexcept { return link(slab).is_in; }

  // Marks the slab as just used, and adds it if needed.
  void touch(SlabId slab) noexcept {
    remove(slab);
    const SlabId last = end().previous;
    link(slab) = {last, kNoSlab, true};
    link(last).next = slab;
    end().previous = slab;
  }
  void remove(SlabId slab) noexcept {
    Link& at = link(slab);
    if (!at.is_in) return;
    link(at.previous).next = at.next;
    link(at.next).previous = at.previous;
    at = {};
  }

 private:
  struct Link {
    SlabId previous{kNoSlab};
    SlabId next{kNoSlab};
    bool is_in{false};
  };

  // kNoSlab, which is -1, names the two ends: the list is a ring through links_[0].
  Link& link(SlabId slab) noexcept { return links_[static_cast<std::size_t>(slab + 1)]; }
  const Link& link(SlabId slab) const noexcept {
    return links_[static_cast<std::size_t>(slab + 1)];
  }
  Link& end() noexcept { return links_.front(); }
  const Link& end() const noexcept { return links_.front(); }

  std::vector<Link> links_;
};

}  // namespace rose::memory
