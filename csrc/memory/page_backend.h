// The source of a pool's memory. Every back end reserves address space, creates physical memory and
// maps it there, and exports and imports memory as descriptors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memfd.h"
#include "base/status.h"

namespace rose::memory {

// Address space without memory until something is mapped there.
struct VaRange {
  std::byte* base{nullptr};
  std::size_t size_bytes{0};
};

// Names physical memory inside its back end; 0 is none.
struct PageHandle {
  std::uint64_t value{0};
  std::size_t size_bytes{0};
};

// Thread rule: one thread at a time, except scrub(). A pool calls its back end while the pool is
// constructed and destroyed. Creation can fail. Release returns nothing, because a destructor could
// not use the result.
class PageBackend {
 public:
  virtual ~PageBackend() = default;

  // True if the host may dereference addresses of reserve(); otherwise only a device may.
  virtual bool is_on_host() const noexcept = 0;

  virtual Result<VaRange> reserve(std::size_t size_bytes) noexcept = 0;
  virtual void release_range(VaRange range) noexcept = 0;

  virtual Result<PageHandle> create(std::size_t size_bytes) noexcept = 0;
  virtual void release(PageHandle handle) noexcept = 0;

  // Maps all of `handle` at `at`, inside a range of reserve(). On error nothing is mapped.
  virtual Status map(std::byte* at, PageHandle handle) noexcept = 0;
  virtual void unmap(VaRange range) noexcept = 0;
  // Zeros the mapped bytes of `range` before it returns.
  virtual Status clear(VaRange range) noexcept = 0;
  // As clear(), for memory that other processes may have mapped: the memory stays mapped for all of
  // them.
  // `range` must be whole pages. Any thread.
  virtual Status scrub(VaRange range) noexcept = 0;

  // A descriptor that another process can import; the caller owns it.
  virtual Result<FileDescriptor> export_fd(PageHandle handle) noexcept = 0;
  // Imports the memory behind `fd`, which must have exactly `size_bytes`.
  virtual Result<PageHandle> import_fd(FileDescriptor fd, std::size_t size_bytes) noexcept = 0;
};

}  // namespace rose::memory
