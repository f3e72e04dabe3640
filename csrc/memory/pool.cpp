#include "memory/pool.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>

namespace rose::memory {

namespace {

Status check_shape(const PoolShape& shape) noexcept {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (shape.slab_bytes == 0 || shape.slab_bytes % page_bytes != 0) {
    return Status::invalid_argument("slab_bytes of " + std::to_string(shape.slab_bytes) +
                                    " is not a multiple of the page of " +
                                    std::to_string(page_bytes) + " bytes");
  }
  if (shape.slab_count < 1) return Status::invalid_argument("slab_count must be at least 1");
  if (shape.header_slabs < 0) return Status::invalid_argument("header_slabs is negative");
  const auto slabs =
      static_cast<std::size_t>(shape.slab_count) + static_cast<std::size_t>(shape.header_slabs);
  if (shape.slab_bytes > std::numeric_limits<std::int64_t>::max() / slabs) {
    return Status::invalid_argument("the pool is larger than the address space");
  }
  return {};
}

}  // namespace

Result<Pool> Pool::create(std::unique_ptr<PageBackend> backend, PoolShape shape,
                          std::size_t object_bytes_max) noexcept {
  ROSE_TRY(check_shape(shape));
  const std::size_t slabs_per_object =
      std::max<std::size_t>(object_bytes_max / shape.slab_bytes, 1);
  const std::size_t object_bytes = slabs_per_object * shape.slab_bytes;
  Pool pool{std::move(backend), shape};
  Result<VaRange> range = pool.backend_->reserve(shape.total_bytes());
  if (!range.ok()) return range.status();
  pool.range_ = range.value();
  for (std::size_t at = 0; at < shape.total_bytes(); at += object_bytes) {
    ROSE_TRY(pool.map_next(at, std::min(object_bytes, shape.total_bytes() - at)));
  }
  if (shape.header_slabs > 0) {
    ROSE_TRY(pool.backend_->clear({pool.range_.base, shape.header_bytes()}));
  }
  return pool;
}

Status Pool::map_next(std::size_t offset, std::size_t size_bytes) noexcept {
  Result<PageHandle> handle = backend_->create(size_bytes);
  if (!handle.ok()) return handle.status();
  const VaRange range{range_.base + offset, size_bytes};
  const Status mapped = backend_->map(range.base, handle.value());
  if (!mapped.ok()) {
    backend_->release(handle.value());
    return mapped;
  }
  objects_.push_back({range, handle.value()});
  return {};
}

Pool::~Pool() {
  if (backend_ == nullptr) return;
  for (const Mapped& object : objects_) {
    backend_->unmap(object.range);
    backend_->release(object.handle);
  }
  if (range_.base != nullptr) backend_->release_range(range_);
}

}  // namespace rose::memory
