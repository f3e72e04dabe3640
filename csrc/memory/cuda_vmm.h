// Device memory: physical pages of the driver, mapped into address space that was reserved before.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "driver/device.h"
#include "driver/stream.h"
#include "memory/page_backend.h"

namespace rose::memory {

// The addresses it gives are the device's: nobody may dereference them on the host.
//
// Sizes are multiples of the driver's granularity (2 MiB): others are InvalidArgument. Memory can
// be exported, and its bytes are those of whoever had them before until they are cleared.
class CudaVmm final : public PageBackend {
 public:
  // Unavailable for a device without virtual memory, or whose memory cannot be handed on by
  // descriptor.
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
  Status scrub(VaRange range) noexcept override;
  Result<FileDescriptor> export_fd(PageHandle handle) noexcept override;
  // The driver does not tell how large imported memory is: too large a size shows at map().
  Result<PageHandle> import_fd(FileDescriptor fd, std::size_t size_bytes) noexcept override;

 private:
  CudaVmm(driver::DevicePtr device, std::size_t granularity_bytes) noexcept
      : device_{std::move(device)}, granularity_bytes_{granularity_bytes} {}
  Status check_size(std::size_t size_bytes) const noexcept;
  // Waits until they are there.
  Status fill_with_zeros(const driver::Stream& stream, VaRange range) noexcept;

  driver::DevicePtr device_;
  std::size_t granularity_bytes_;

  std::mutex scrubbing_;  // guards the stream, which the first scrub() makes
  std::unique_ptr<driver::Stream> scrub_stream_;
};

}  // namespace rose::memory
