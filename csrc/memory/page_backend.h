// Where the bytes of a pool come from. Every back end does the same five things: address space,
// physical memory, mapping one at the other, and handing memory to another process by descriptor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memfd.h"
#include "base/status.h"

namespace rose::memory {

// Address space without memory behind it, until something is mapped there.
struct VaRange {
  std::byte* base{nullptr};
  std::size_t size_bytes{0};
};

// Names physical memory inside its back end; 0 is no memory.
struct PageHandle {
  std::uint64_t value{0};
  std::size_t size_bytes{0};
};

// Thread rule: one thread at a time; the pool calls it while it is built and while it ends.
// What makes something can fail. What gives back cannot be refused, so it returns nothing: a
// destructor could do no more with the answer.
class PageBackend {
 public:
  virtual ~PageBackend() = default;

  // Whether the addresses of reserve() may be dereferenced here; otherwise a device alone may.
  virtual bool is_on_host() const noexcept = 0;

  virtual Result<VaRange> reserve(std::size_t size_bytes) noexcept = 0;
  virtual void release_range(VaRange range) noexcept = 0;

  virtual Result<PageHandle> create(std::size_t size_bytes) noexcept = 0;
  virtual void release(PageHandle handle) noexcept = 0;

  // Maps all of `handle` at `at`, inside a range of reserve(). On error nothing is mapped.
  virtual Status map(std::byte* at, PageHandle handle) noexcept = 0;
  virtual void unmap(VaRange range) noexcept = 0;
  // Makes the mapped bytes of `range` zero; they are when it returns.
  virtual Status clear(VaRange range) noexcept = 0;
  // As clear(), for bytes that are in use: the memory stays where it is, for whoever else has it
  // mapped and for the one who touches it next. The range is whole pages. Any thread.
  virtual Status scrub(VaRange range) noexcept = 0;

  // A descriptor another process can import; the caller owns it.
  virtual Result<FileDescriptor> export_fd(PageHandle handle) noexcept = 0;
  // Takes the memory behind `fd`, which must hold exactly `size_bytes`.
  virtual Result<PageHandle> import_fd(FileDescriptor fd, std::size_t size_bytes) noexcept = 0;
};

}  // namespace rose::memory
