// A borrower's own mapping of a pool, in which only the slabs it holds can be touched.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "memory/page_backend.h"
#include "memory/shape.h"

namespace rose::memory {

// Addresses for the whole pool, at the distances of the pool, so that block tables and layer views
// are those of a tenant that maps everything. A slab comes by a descriptor of its own
// (Pool::share_slab) and goes in two steps:
//
//   AWAY -> HERE      take(): mapped
//   HERE -> LEAVING   give(): the tenant must not touch it any more, and still could
//   LEAVING -> AWAY   sweep(): unmapped; any touch faults
//   LEAVING -> HERE   take(): lent again before it was swept; the mapping was there all the time
//
// Serving does not wait for any of this: its own mapping never goes, and a slab is its own again
// when the arbiter says so. What a borrower has never been lent it has no descriptor of.
//
// Thread rule: one thread at a time, and only while no kernel of this tenant runs: page tables that
// change under a running kernel make it fault, even when it reads elsewhere.
//
// Invariants:
//   1. A slab that is AWAY is not mapped here, and no descriptor of it is open here.
//   2. A header slab that was opened stays until the window ends.
//   3. A take() that fails changes nothing.
class MappedWindow {
 public:
  static Result<MappedWindow> create(std::unique_ptr<PageBackend> backend,
                                     PoolShape shape) noexcept;
  MappedWindow(MappedWindow&& other) noexcept = default;
  MappedWindow& operator=(MappedWindow&&) = delete;
  ~MappedWindow();

  const PoolShape& shape() const noexcept { return shape_; }
  // What lies AWAY must not be touched; on the host it ends the process by SIGSEGV.
  std::byte* data() const noexcept { return range_.base; }
  bool is_on_host() const noexcept { return backend_->is_on_host(); }
  std::size_t size_bytes() const noexcept { return shape_.total_bytes(); }

  // Maps the tenant's own header slab: its null blocks. Takes the descriptor.
  Status open_header(std::int32_t index, FileDescriptor fd) noexcept;
  // Takes the descriptor, which must be of this slab. A slab that is mapped stays as it is.
  Status take(SlabId slab, FileDescriptor fd) noexcept;
  // InvalidArgument when the slab is AWAY.
  Status give(SlabId slab) noexcept;
  // Unmaps up to `slabs_max` slabs that are LEAVING, those given first, and returns how many.
  std::int32_t sweep(std::int32_t slabs_max) noexcept;

  // Those HERE, ascending.
  std::vector<SlabId> held() const noexcept;
  std::int32_t leaving() const noexcept { return static_cast<std::int32_t>(leaving_.size()); }

 private:
  enum class Presence : std::uint8_t { kAway, kHere, kLeaving };
  struct Place {
    PageHandle handle;
    Presence presence{Presence::kAway};
  };

  MappedWindow(std::unique_ptr<PageBackend> backend, PoolShape shape) noexcept;
  Status check_slab(SlabId slab) const noexcept;
  Status map(std::size_t place, FileDescriptor fd) noexcept;
  void unmap(std::size_t place) noexcept;
  std::size_t place_of(SlabId slab) const noexcept {
    return static_cast<std::size_t>(shape_.header_slabs) + static_cast<std::size_t>(slab);
  }

  std::unique_ptr<PageBackend> backend_;  // null after a move
  PoolShape shape_;
  VaRange range_;
  std::vector<Place> places_;        // header slabs first
  std::deque<std::size_t> leaving_;  // the places of those that are LEAVING, as they were given
};

}  // namespace rose::memory
