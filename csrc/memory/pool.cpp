#include "memory/pool.h"

#include <algorithm>
#include <string>
#include <utility>

namespace rose::memory {

namespace {

// Checks that the objects of `from` are whole slabs, and together all slabs of its shape.
Status check_objects(const PoolExport& from) noexcept {
  if (from.objects.size() != from.sizes.size()) {
    return Status::invalid_argument("each memory object needs one descriptor, got " +
                                    std::to_string(from.objects.size()) + " descriptors for " +
                                    std::to_string(from.sizes.size()) + " memory objects");
  }
  std::size_t missing = from.shape.total_bytes();
  for (const std::size_t size_bytes : from.sizes) {
    if (size_bytes == 0 || size_bytes % from.shape.slab_bytes != 0 || size_bytes > missing) {
      return Status::invalid_argument(
          "a memory object must be whole slabs of " + std::to_string(from.shape.slab_bytes) +
          " bytes within the remaining " + std::to_string(missing) + " bytes of the pool, got " +
          std::to_string(size_bytes) + " bytes");
    }
    missing -= size_bytes;
  }
  if (missing == 0) return {};
  return Status::invalid_argument("the memory objects do not cover " + std::to_string(missing) +
                                  " of " + std::to_string(from.shape.total_bytes()) +
                                  " bytes of the pool");
}

Status check_kind(bool is_on_host, bool should_be) noexcept {
  if (is_on_host == should_be) return {};
  const auto kind = [](bool host) { return host ? "the host" : "a device"; };
  return Status::invalid_argument(std::string{"the pool is memory of "} + kind(is_on_host) +
                                  ", but this process maps memory of " + kind(should_be));
}

}  // namespace

Result<Pool> Pool::create(std::unique_ptr<PageBackend> backend, PoolShape shape,
                          std::size_t object_bytes_max) noexcept {
  ROSE_TRY(check_shape(shape));
  const std::size_t slabs_per_object =
      std::max<std::size_t>(object_bytes_max / shape.slab_bytes, 1);
  const std::size_t object_bytes = slabs_per_object * shape.slab_bytes;
  Pool pool{std::move(backend), shape};
  ROSE_TRY(pool.reserve());
  for (std::size_t at = 0; at < shape.total_bytes(); at += object_bytes) {
    const std::size_t size_bytes = std::min(object_bytes, shape.total_bytes() - at);
    ROSE_TRY(pool.map_next(at, pool.backend_->create(size_bytes)));
  }
  if (shape.header_slabs > 0) {
    ROSE_TRY(pool.backend_->clear({pool.range_.base, shape.header_bytes()}));
  }
  return pool;
}

Result<Pool> Pool::attach(std::unique_ptr<PageBackend> backend, PoolExport from) noexcept {
  ROSE_TRY(check_shape(from.shape));
  ROSE_TRY(check_kind(from.is_on_host, backend->is_on_host()));
  ROSE_TRY(check_objects(from));
  Pool pool{std::move(backend), from.shape};
  ROSE_TRY(pool.reserve());
  std::size_t at = 0;
  for (std::size_t i = 0; i < from.sizes.size(); ++i) {
    ROSE_TRY(
        pool.map_next(at, pool.backend_->import_fd(std::move(from.objects[i]), from.sizes[i])));
    at += from.sizes[i];
  }
  return pool;
}

Result<PoolExport> Pool::share() const noexcept {
  PoolExport out{.shape = shape_, .objects = {}, .sizes = {}, .is_on_host = is_on_host()};
  for (const Mapped& object : objects_) {
    Result<FileDescriptor> fd = backend_->export_fd(object.handle);
    if (!fd.ok()) return fd.status();
    out.objects.push_back(fd.take());
    out.sizes.push_back(object.range.size_bytes);
  }
  return out;
}

Status Pool::scrub(SlabId slab) const noexcept {
  ROSE_TRY(check_slab(slab));
  return backend_->scrub({range_.base + shape_.slab_base(slab), shape_.slab_bytes});
}

Result<FileDescriptor> Pool::share_slab(SlabId slab) const noexcept {
  ROSE_TRY(check_slab(slab));
  return share_place(static_cast<std::size_t>(shape_.header_slabs) +
                     static_cast<std::size_t>(slab));
}

Result<FileDescriptor> Pool::share_header(std::int32_t index) const noexcept {
  if (index < 0 || index >= shape_.header_slabs) {
    return Status::invalid_argument("the pool has no header slab " + std::to_string(index));
  }
  return share_place(static_cast<std::size_t>(index));
}

Result<FileDescriptor> Pool::share_place(std::size_t place) const noexcept {
  if (objects_.size() != shape_.total_bytes() / shape_.slab_bytes) {
    return Status::invalid_argument(
        "a slab cannot be shared alone: make the pool with memory objects of one slab each "
        "(object_bytes_max " +
        std::to_string(shape_.slab_bytes) + ")");
  }
  return backend_->export_fd(objects_[place].handle);
}

Status Pool::check_slab(SlabId slab) const noexcept {
  if (slab >= 0 && slab < shape_.slab_count) return {};
  return Status::invalid_argument("slab " + std::to_string(slab) + " does not exist");
}

Status Pool::reserve() noexcept {
  Result<VaRange> range = backend_->reserve(shape_.total_bytes());
  if (!range.ok()) return range.status();
  range_ = range.value();
  return {};
}

Status Pool::map_next(std::size_t offset, Result<PageHandle> handle) noexcept {
  if (!handle.ok()) return handle.status();
  const VaRange range{range_.base + offset, handle.value().size_bytes};
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
