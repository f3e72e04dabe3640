// Device memory: physical pages of the driver, mapped into reserved address space.
#pragma once

#include <memory>
#include <utility>

#include "driver/device.h"
#include "driver/stream.h"
#include "memory/page_backend.h"

namespace rose::memory {

// Its addresses are device addresses and must not be dereferenced on the host.
//
// Sizes must be multiples of the driver's granularity (2 MiB); any other size is InvalidArgument.
// Memory can be exported. New memory may hold the bytes of a previous owner until it is cleared.
class CudaVmm final : public PageBackend {
 public:
  // Unavailable if the device has no virtual memory management, or if its memory cannot be exported
  // as a descriptor.
  static Result<std::unique_ptr<CudaVmm>> create(driver::DevicePtr device) noexcept;

  std::size_t granularity_bytes() const noexcept { return granularity_bytes_; }

  bool is_on_host() const noexcept override { return false; }
  Result<VaRange> reserve(std::size_t size_bytes) noexcept override;
  void release_range(VaRange range) noexcept override;
  Result<PageHandle> create(std::size_t size_bytes) noexcept override;
  void release(PageHandle handle) noexcept override;
  Status map(std::byte* at, PageHandle handle) noexcept override;
  void unmap(VaRange range) noexcept override;
  Status clear(VaRange range) noexcept override;
  Status scrub(VaRange range) noexcept override { return clear(range); }
  Result<FileDescriptor> export_fd(PageHandle handle) noexcept override;
  // The driver does not report the size of imported memory, so a `size_bytes` that is too large
  // only fails in map().
  Result<PageHandle> import_fd(FileDescriptor fd, std::size_t size_bytes) noexcept override;

 private:
  CudaVmm(driver::DevicePtr device, std::size_t granularity_bytes,
          std::unique_ptr<driver::Stream> stream) noexcept
      : device_{std::move(device)},
        granularity_bytes_{granularity_bytes},
        stream_{std::move(stream)} {}
  Status check_size(std::size_t size_bytes) const noexcept;

  driver::DevicePtr device_;
  std::size_t granularity_bytes_;
  // Fills memory with zeros. It exists before the self-test of gates, and has a priority of its
  // own: a fill behind a parked borrower would wait for serving.
  std::unique_ptr<driver::Stream> stream_;
};

}  // namespace rose::memory
