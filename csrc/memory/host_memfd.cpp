#include "memory/host_memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

#include "memory/scrub.h"

namespace rose::memory {

Result<VaRange> HostMemfd::reserve(std::size_t size_bytes) noexcept {
  void* base =
      ::mmap(nullptr, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return from_errno("mmap(reserve)", errno);
  return VaRange{static_cast<std::byte*>(base), size_bytes};
}

void HostMemfd::release_range(VaRange range) noexcept { ::munmap(range.base, range.size_bytes); }

Result<PageHandle> HostMemfd::create(std::size_t size_bytes) noexcept {
  Result<FileDescriptor> fd = create_memfd("rose-pool", size_bytes);
  if (!fd.ok()) return fd.status();
  return keep(fd.take(), size_bytes);
}

void HostMemfd::release(PageHandle handle) noexcept {
  if (find(handle) == nullptr) return;
  objects_[handle.value - 1] = FileDescriptor{};
  free_.push_back(handle.value);
}

Status HostMemfd::map(std::byte* at, PageHandle handle) noexcept {
  const FileDescriptor* fd = find(handle);
  if (fd == nullptr) return Status::invalid_argument("the memory object does not exist");
  void* mapped =
      ::mmap(at, handle.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd->get(), 0);
  if (mapped == MAP_FAILED) return from_errno("mmap(memory)", errno);
  return {};
}

void HostMemfd::unmap(VaRange range) noexcept {
  // Reserves the range again instead of freeing it, so that no other mapping gets these addresses.
  ::mmap(range.base, range.size_bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

Status HostMemfd::clear(VaRange range) noexcept {
  // Frees the pages; the next access gets zeros.
  if (::madvise(range.base, range.size_bytes, MADV_REMOVE) != 0) {
    return from_errno("madvise(clear)", errno);
  }
  return {};
}

Status HostMemfd::scrub(VaRange range) noexcept {
  scrub_host(range.base, range.size_bytes);
  return {};
}

Result<FileDescriptor> HostMemfd::export_fd(PageHandle handle) noexcept {
  const FileDescriptor* fd = find(handle);
  if (fd == nullptr) return Status::invalid_argument("the memory object does not exist");
  return fd->duplicate();
}

Result<PageHandle> HostMemfd::import_fd(FileDescriptor fd, std::size_t size_bytes) noexcept {
  // Without these seals, a process with the descriptor could shrink the object, and any access
  // would end this process.
  constexpr int kSized = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSized) != kSized) {
    return Status::invalid_argument(
        "the descriptor of pool memory must be a memfd whose size is sealed");
  }
  struct stat about{};
  if (::fstat(fd.get(), &about) != 0) return from_errno("fstat", errno);
  if (about.st_size != static_cast<off_t>(size_bytes)) {
    return Status::invalid_argument("the descriptor of pool memory must have " +
                                    std::to_string(size_bytes) + " bytes, got " +
                                    std::to_string(about.st_size));
  }
  return keep(std::move(fd), size_bytes);
}

PageHandle HostMemfd::keep(FileDescriptor fd, std::size_t size_bytes) noexcept {
  if (free_.empty()) {
    objects_.push_back(std::move(fd));
    return PageHandle{objects_.size(), size_bytes};
  }
  const std::uint64_t value = free_.back();
  free_.pop_back();
  objects_[value - 1] = std::move(fd);
  return PageHandle{value, size_bytes};
}

const FileDescriptor* HostMemfd::find(PageHandle handle) const noexcept {
  if (handle.value == 0 || handle.value > objects_.size()) return nullptr;
  const FileDescriptor& fd = objects_[handle.value - 1];
  return fd.is_open() ? &fd : nullptr;
}

}  // namespace rose::memory
