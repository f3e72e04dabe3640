// The memory of one device, mapped once for good: leases move ownership, never mappings.
#pragma once

#include <memory>
#include <vector>

#include "memory/page_backend.h"
#include "memory/shape.h"

namespace rose::memory {

// The values and descriptors with which another process attaches to a pool. They are sent over a
// socket.
struct PoolExport {
  PoolShape shape;
  std::vector<FileDescriptor> objects;  // in address order
  std::vector<std::size_t> sizes;       // bytes of each object: whole slabs that add up to the pool
  bool is_on_host{true};
};

// Owns the back end, the memory objects and their address range.
//
// Invariants:
//   1. All slabs, header first, are contiguous in address space.
//   2. The header is zero in a new pool, so null blocks read as zero. Other bytes may be anything.
//      Attaching changes no bytes.
//   3. An address inside the pool stays valid and keeps its bytes until this pool ends, even if the
//      pool it was attached to ends first.
class Pool {
 public:
  // Reserves, creates and maps everything; on error nothing is left. A memory object has up to
  // `object_bytes_max` bytes, but at least one slab. Fewer, larger objects save file descriptors:
  // each object may use one while the pool lives.
  static Result<Pool> create(std::unique_ptr<PageBackend> backend, PoolShape shape,
                             std::size_t object_bytes_max = kObjectBytesMax) noexcept;

  // Maps the memory of a pool of another process (or of this one), each object once, at the same
  // offsets. Owns the descriptors, even on failure; on error nothing is left. InvalidArgument if
  // the sizes do not add up to the shape, if the back end does not map this kind of memory (host or
  // device), or if a descriptor does not fit its size.
  static Result<Pool> attach(std::unique_ptr<PageBackend> backend, PoolExport from) noexcept;

  Pool(Pool&& other) noexcept = default;
  Pool& operator=(Pool&&) = delete;
  ~Pool();

  const PoolShape& shape() const noexcept { return shape_; }
  // Not to be dereferenced unless is_on_host().
  std::byte* data() const noexcept { return range_.base; }
  bool is_on_host() const noexcept { return backend_->is_on_host(); }
  std::size_t size_bytes() const noexcept { return shape_.total_bytes(); }
  // Returns new descriptors of all objects; the caller owns them. An attached pool can be shared,
  // too. Thread rule: that of the back end, so not while the pool is being destroyed.
  Result<PoolExport> share() const noexcept;

  // ---- one slab alone, for a borrower that maps only lent slabs

  // Zeros the slab through this mapping; the zeros are written when it returns. The slab's new
  // owner must not have touched it yet, and the slab must not change owner meanwhile. Any thread.
  // After DeadlineExceeded the device may still write.
  Status scrub(SlabId slab) const noexcept;
  // Returns a new descriptor of one slab or header slab. InvalidArgument unless each memory object
  // is one slab (object_bytes_max of create()).
  Result<FileDescriptor> share_slab(SlabId slab) const noexcept;
  Result<FileDescriptor> share_header(std::int32_t index) const noexcept;

  // 140 GiB in 1 GiB objects use 140 descriptors; a process's usual limit is 1,024.
  static constexpr std::size_t kObjectBytesMax = std::size_t{1} << 30;

 private:
  struct Mapped {
    VaRange range;
    PageHandle handle;
  };

  Pool(std::unique_ptr<PageBackend> backend, PoolShape shape) noexcept
      : backend_{std::move(backend)}, shape_{shape} {}
  Status check_slab(SlabId slab) const noexcept;
  Result<FileDescriptor> share_place(std::size_t place) const noexcept;
  Status reserve() noexcept;
  // Owns the handle from here on, even on failure.
  Status map_next(std::size_t offset, Result<PageHandle> handle) noexcept;

  std::unique_ptr<PageBackend> backend_;  // null after a move
  PoolShape shape_;
  VaRange range_;
  std::vector<Mapped> objects_;
};

}  // namespace rose::memory
