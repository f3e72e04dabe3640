#include "memory/faulty.h"

#include <utility>

namespace rose::memory {

Result<VaRange> FaultyBackend::reserve(std::size_t size_bytes) noexcept {
  ROSE_TRY(next_call());
  Result<VaRange> range = inner_->reserve(size_bytes);
  if (range.ok()) ++plan_->live_ranges;
  return range;
}

void FaultyBackend::release_range(VaRange range) noexcept {
  inner_->release_range(range);
  --plan_->live_ranges;
}

Result<PageHandle> FaultyBackend::create(std::size_t size_bytes) noexcept {
  ROSE_TRY(next_call());
  Result<PageHandle> handle = inner_->create(size_bytes);
  if (handle.ok()) ++plan_->live_objects;
  return handle;
}

void FaultyBackend::release(PageHandle handle) noexcept {
  inner_->release(handle);
  --plan_->live_objects;
}

Status FaultyBackend::map(std::byte* at, PageHandle handle) noexcept {
  ROSE_TRY(next_call());
  ROSE_TRY(inner_->map(at, handle));
  ++plan_->live_mappings;
  return {};
}

void FaultyBackend::unmap(VaRange range) noexcept {
  inner_->unmap(range);
  --plan_->live_mappings;
}

Status FaultyBackend::clear(VaRange range) noexcept {
  ROSE_TRY(next_call());
  return inner_->clear(range);
}

Status FaultyBackend::scrub(VaRange range) noexcept {
  ROSE_TRY(next_call());
  return inner_->scrub(range);
}

Result<FileDescriptor> FaultyBackend::export_fd(PageHandle handle) noexcept {
  ROSE_TRY(next_call());
  return inner_->export_fd(handle);
}

Result<PageHandle> FaultyBackend::import_fd(FileDescriptor fd, std::size_t size_bytes) noexcept {
  ROSE_TRY(next_call());
  Result<PageHandle> handle = inner_->import_fd(std::move(fd), size_bytes);
  if (handle.ok()) ++plan_->live_objects;
  return handle;
}

Status FaultyBackend::next_call() noexcept {
  return ++plan_->calls == plan_->fail_call ? plan_->failure : Status{};
}

}  // namespace rose::memory
