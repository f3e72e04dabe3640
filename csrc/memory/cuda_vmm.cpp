#include "memory/cuda_vmm.h"

#include <fcntl.h>

#include <bit>
#include <cstdint>
#include <string>

namespace rose::memory {

using driver::Current;

namespace {

// Deadline of a clear. Clearing a pool takes milliseconds; a device that takes longer is stuck.
constexpr Nanoseconds kClearNs = 10'000'000'000;

driver::AllocationProperties properties_of(const driver::Device& device) noexcept {
  driver::AllocationProperties properties{};
  properties.type = driver::kAllocationPinned;
  properties.handle_types = driver::kHandlePosixFd;
  properties.location = {driver::kLocationDevice, device.ordinal()};
  return properties;
}

driver::DevicePointer pointer_of(const std::byte* address) noexcept {
  return std::bit_cast<driver::DevicePointer>(address);
}

}  // namespace

Result<std::unique_ptr<CudaVmm>> CudaVmm::create(driver::DevicePtr device) noexcept {
  const driver::DeviceFacts& facts = device->facts();
  if (!facts.has_virtual_memory || !facts.has_posix_fd_handles) {
    return Status::unavailable("CUDA device " + std::to_string(facts.ordinal) + " (" + facts.name +
                               ") has no " +
                               (facts.has_virtual_memory ? "memory that file descriptors can share"
                                                         : "virtual memory management") +
                               ", which rose's pool needs");
  }
  const Current current{*device};
  ROSE_TRY(current.status());
  const driver::AllocationProperties properties = properties_of(*device);
  std::size_t granularity_bytes = 0;
  ROSE_TRY(ROSE_CU(device->driver(), cuMemGetAllocationGranularity, &granularity_bytes, &properties,
                   driver::kGranularityRecommended));
  ROSE_CHECK(granularity_bytes > 0, "the driver's granularity is 0 bytes");
  auto stream = driver::Stream::create(device, driver::StreamPriority::kAboveLowest);
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<CudaVmm>{new CudaVmm{device, granularity_bytes, stream.take()}};
}

Status CudaVmm::check_size(std::size_t size_bytes) const noexcept {
  if (size_bytes > 0 && size_bytes % granularity_bytes_ == 0) return {};
  return Status::invalid_argument(
      "the size of device memory must be a positive multiple of the "
      "driver's page of " +
      std::to_string(granularity_bytes_) + " bytes, got " + std::to_string(size_bytes) + " bytes");
}

Result<VaRange> CudaVmm::reserve(std::size_t size_bytes) noexcept {
  ROSE_TRY(check_size(size_bytes));
  const Current current{*device_};
  ROSE_TRY(current.status());
  driver::DevicePointer base = 0;
  ROSE_TRY(
      ROSE_CU(device_->driver(), cuMemAddressReserve, &base, size_bytes, granularity_bytes_, 0, 0));
  return VaRange{std::bit_cast<std::byte*>(base), size_bytes};
}

void CudaVmm::release_range(VaRange range) noexcept {
  const Current current{*device_};
  device_->driver().entries().cuMemAddressFree(pointer_of(range.base), range.size_bytes);
}

Result<PageHandle> CudaVmm::create(std::size_t size_bytes) noexcept {
  ROSE_TRY(check_size(size_bytes));
  const Current current{*device_};
  ROSE_TRY(current.status());
  const driver::AllocationProperties properties = properties_of(*device_);
  driver::MemoryHandle handle = 0;
  ROSE_TRY(ROSE_CU(device_->driver(), cuMemCreate, &handle, size_bytes, &properties, 0));
  return PageHandle{handle, size_bytes};
}

void CudaVmm::release(PageHandle handle) noexcept {
  const Current current{*device_};
  device_->driver().entries().cuMemRelease(handle.value);
}

Status CudaVmm::map(std::byte* at, PageHandle handle) noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  const driver::DevicePointer address = pointer_of(at);
  ROSE_TRY(ROSE_CU(device_->driver(), cuMemMap, address, handle.size_bytes, 0, handle.value, 0));
  const driver::AccessDescription access{properties_of(*device_).location,
                                         driver::kAccessReadWrite};
  const Status opened =
      ROSE_CU(device_->driver(), cuMemSetAccess, address, handle.size_bytes, &access, 1);
  if (!opened.ok()) device_->driver().entries().cuMemUnmap(address, handle.size_bytes);
  return opened;
}

void CudaVmm::unmap(VaRange range) noexcept {
  const Current current{*device_};
  device_->driver().entries().cuMemUnmap(pointer_of(range.base), range.size_bytes);
}

Status CudaVmm::clear(VaRange range) noexcept {
  {
    const Current current{*device_};
    ROSE_TRY(current.status());
    ROSE_TRY(ROSE_CU(device_->driver(), cuMemsetD32Async, pointer_of(range.base), 0,
                     range.size_bytes / sizeof(std::uint32_t), stream_->get()));
  }
  return stream_->wait(kClearNs);
}

Result<FileDescriptor> CudaVmm::export_fd(PageHandle handle) noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  int fd = -1;
  ROSE_TRY(ROSE_CU(device_->driver(), cuMemExportToShareableHandle, &fd, handle.value,
                   driver::kHandlePosixFd, 0));
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // the driver does not promise this flag
  return FileDescriptor{fd};
}

Result<PageHandle> CudaVmm::import_fd(FileDescriptor fd, std::size_t size_bytes) noexcept {
  ROSE_TRY(check_size(size_bytes));
  const Current current{*device_};
  ROSE_TRY(current.status());
  driver::MemoryHandle handle = 0;
  // The driver's interface expects the descriptor's number in the place of a pointer.
  const auto number = std::bit_cast<void*>(static_cast<std::intptr_t>(fd.get()));
  ROSE_TRY(ROSE_CU(device_->driver(), cuMemImportFromShareableHandle, &handle, number,
                   driver::kHandlePosixFd));
  return PageHandle{handle, size_bytes};
}

}  // namespace rose::memory
