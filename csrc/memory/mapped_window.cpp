#include "memory/mapped_window.h"

#include <string>
#include <utility>

namespace rose::memory {

Result<MappedWindow> MappedWindow::create(std::unique_ptr<PageBackend> backend,
                                          PoolShape shape) noexcept {
  ROSE_TRY(check_shape(shape));
  MappedWindow window{std::move(backend), shape};
  Result<VaRange> range = window.backend_->reserve(shape.total_bytes());
  if (!range.ok()) return range.status();
  window.range_ = range.value();
  return window;
}

MappedWindow::MappedWindow(std::unique_ptr<PageBackend> backend, PoolShape shape) noexcept
    : backend_{std::move(backend)},
      shape_{shape},
      places_(shape.total_bytes() / shape.slab_bytes) {}

MappedWindow::~MappedWindow() {
  if (backend_ == nullptr) return;
  for (std::size_t place = 0; place < places_.size(); ++place) {
    if (places_[place].presence != Presence::kAway) unmap(place);
  }
  if (range_.base != nullptr) backend_->release_range(range_);
}

Status MappedWindow::open_header(std::int32_t index, FileDescriptor fd) noexcept {
  if (index < 0 || index >= shape_.header_slabs) {
    return Status::invalid_argument("the pool has no header slab " + std::to_string(index));
  }
  return map(static_cast<std::size_t>(index), std::move(fd));
}

Status MappedWindow::take(SlabId slab, FileDescriptor fd) noexcept {
  ROSE_TRY(check_slab(slab));
  return map(place_of(slab), std::move(fd));
}

Status MappedWindow::give(SlabId slab) noexcept {
  ROSE_TRY(check_slab(slab));
  Place& place = places_[place_of(slab)];
  if (place.presence == Presence::kAway) {
    return Status::invalid_argument("slab " + std::to_string(slab) +
                                    " is not mapped in this window");
  }
  if (std::exchange(place.presence, Presence::kLeaving) == Presence::kHere) {
    leaving_.push_back(place_of(slab));
  }
  return {};
}

std::int32_t MappedWindow::sweep(std::int32_t slabs_max) noexcept {
  std::int32_t swept = 0;
  for (; swept < slabs_max && !leaving_.empty(); ++swept) {
    unmap(leaving_.front());
    leaving_.pop_front();
  }
  return swept;
}

std::vector<SlabId> MappedWindow::held() const noexcept {
  std::vector<SlabId> slabs;
  for (SlabId slab = 0; slab < shape_.slab_count; ++slab) {
    if (places_[place_of(slab)].presence == Presence::kHere) slabs.push_back(slab);
  }
  return slabs;
}

Status MappedWindow::check_slab(SlabId slab) const noexcept {
  if (slab >= 0 && slab < shape_.slab_count) return {};
  return Status::invalid_argument("slab " + std::to_string(slab) + " does not exist");
}

Status MappedWindow::map(std::size_t at, FileDescriptor fd) noexcept {
  Place& place = places_[at];
  if (place.presence == Presence::kAway) {
    Result<PageHandle> handle = backend_->import_fd(std::move(fd), shape_.slab_bytes);
    if (!handle.ok()) return handle.status();
    const Status mapped = backend_->map(range_.base + at * shape_.slab_bytes, handle.value());
    if (!mapped.ok()) {
      backend_->release(handle.value());
      return mapped;
    }
    place.handle = handle.value();
  }
  if (place.presence == Presence::kLeaving) std::erase(leaving_, at);
  place.presence = Presence::kHere;
  return {};
}

void MappedWindow::unmap(std::size_t at) noexcept {
  backend_->unmap({range_.base + at * shape_.slab_bytes, shape_.slab_bytes});
  backend_->release(std::exchange(places_[at], {}).handle);
}

}  // namespace rose::memory
