// A borrower's own mapping of a pool. The borrower can touch only the slabs that it holds.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "memory/page_backend.h"
#include "memory/shape.h"

namespace rose::memory {

// Reserves addresses for the whole pool, with the pool's offsets, so that block tables and layer
// views equal those of a tenant that maps everything. Each slab arrives as a descriptor of its own
// (Pool::share_slab()) and is unmapped in two steps:
//
//   AWAY -> HERE      take(): mapped
//   HERE -> LEAVING   give(): the tenant must not touch it, but still could
//   LEAVING -> AWAY   sweep(): unmapped; any touch faults
//   LEAVING -> HERE   take(): lent again before sweep(), so it was mapped all the time
//
// Serving waits for none of this: it has a mapping of its own, which stays, and it may use a slab
// as soon as the arbiter records the slab's return. A borrower never has a descriptor of a slab
// that was not lent to it.
//
// Thread rule: one thread at a time, and only while no kernel of this tenant runs. A change of page
// tables would make a running kernel fault, even if that kernel reads other addresses.
//
// Invariants:
//   1. An AWAY slab is not mapped here, and no descriptor of it is open here.
//   2. An opened header slab stays mapped until the window is destroyed.
//   3. A take() that fails changes nothing.
class MappedWindow {
 public:
  static Result<MappedWindow> create(std::unique_ptr<PageBackend> backend,
                                     PoolShape shape) noexcept;
  MappedWindow(MappedWindow&& other) noexcept = default;
  MappedWindow& operator=(MappedWindow&&) = delete;
  ~MappedWindow();

  const PoolShape& shape() const noexcept { return shape_; }
  // AWAY slabs must not be touched: on the host that ends the process by SIGSEGV.
  std::byte* data() const noexcept { return range_.base; }
  bool is_on_host() const noexcept { return backend_->is_on_host(); }
  std::size_t size_bytes() const noexcept { return shape_.total_bytes(); }

  // Maps the tenant's own header slab, with its null blocks. The window owns `fd` from here on.
  Status open_header(std::int32_t index, FileDescriptor fd) noexcept;
  // Maps the slab from its descriptor `fd`, which the window owns from here on. A slab that is
  // mapped already stays so.
  Status take(SlabId slab, FileDescriptor fd) noexcept;
  // InvalidArgument if the slab is AWAY.
  Status give(SlabId slab) noexcept;
  // Unmaps up to `slabs_max` LEAVING slabs, in the order of their give(). Returns how many.
  std::int32_t sweep(std::int32_t slabs_max) noexcept;

  // HERE slabs, ascending.
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
  std::deque<std::size_t> leaving_;  // the places of LEAVING slabs, in the order of give()
};

}  // namespace rose::memory
