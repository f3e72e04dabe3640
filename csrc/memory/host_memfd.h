// Host memory for CPU-only machines: each object is a memfd, mapped into reserved address space.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/page_backend.h"

namespace rose::memory {

class HostMemfd final : public PageBackend {
 public:
  bool is_on_host() const noexcept override { return true; }
  Result<VaRange> reserve(std::size_t size_bytes) noexcept override;
  void release_range(VaRange range) noexcept override;
  Result<PageHandle> create(std::size_t size_bytes) noexcept override;
  void release(PageHandle handle) noexcept override;
  Status map(std::byte* at, PageHandle handle) noexcept override;
  void unmap(VaRange range) noexcept override;
  Status clear(VaRange range) noexcept override;
  Status scrub(VaRange range) noexcept override;
  Result<FileDescriptor> export_fd(PageHandle handle) noexcept override;
  Result<PageHandle> import_fd(FileDescriptor fd, std::size_t size_bytes) noexcept override;

 private:
  PageHandle keep(FileDescriptor fd, std::size_t size_bytes) noexcept;
  const FileDescriptor* find(PageHandle handle) const noexcept;

  // A handle is a position in objects_ plus one. A released object leaves a closed descriptor at
  // its position, and the next object gets that position.
  std::vector<FileDescriptor> objects_;
  std::vector<std::uint64_t> free_;  // handles of released objects
};

}  // namespace rose::memory
