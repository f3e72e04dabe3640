// Device code embedded in the extension, loaded and launched through the driver.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "driver/device.h"

namespace rose::driver {

// The fat binary of one kernels/<name>.cu. The build generates `embedded_fatbins`; without nvcc, or
// with ROSE_CUDA=off, it is empty.
struct Fatbin {
  std::string_view name;
  std::span<const std::byte> bytes;
};
std::span<const Fatbin> embedded_fatbins() noexcept;

inline constexpr std::uint64_t kBlocksMax = (std::uint64_t{1} << 31) - 1;  // limit of gridDim.x
struct Grid {
  unsigned blocks{1};
  unsigned threads{1};
  unsigned shared_bytes{0};
};

// Owns one loaded fat binary. By default the driver loads a kernel's code at its first launch, and
// such a launch can wait for a stream behind a closed gate. So kernel() loads the code before any
// launch. Any thread may use a KernelLibrary.
class KernelLibrary {
 public:
  // Unavailable if this build has no device code, or none with that name.
  static Result<std::shared_ptr<const KernelLibrary>> create(DevicePtr device,
                                                             std::string_view name) noexcept;
  // Loads a fat binary that is not embedded; the driver keeps no pointer into it.
  static Result<std::shared_ptr<const KernelLibrary>> create(DevicePtr device,
                                                             const Fatbin& fatbin) noexcept;
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  const DevicePtr& device() const noexcept { return device_; }
  // Loads the kernel onto the device; call it before serving starts.
  Result<CUkernel> kernel(const char* name) const noexcept;

  // Allows launches of `kernel` with up to `size_bytes` of dynamic shared memory.
  Status allow_shared(CUkernel kernel, int size_bytes) const noexcept;

  // Passes `arguments` by value; their types must match the kernel's exactly.
  template <typename... Arguments>
  Status launch(CUkernel kernel, Grid grid, CUstream stream,
                Arguments... arguments) const noexcept {
    std::array<void*, sizeof...(Arguments)> pointers{&arguments...};
    return launch_raw(kernel, grid, stream, pointers.data());
  }

 private:
  KernelLibrary(DevicePtr device, CUlibrary library) noexcept
      : device_{std::move(device)}, library_{library} {}
  Status launch_raw(CUkernel kernel, Grid grid, CUstream stream, void** arguments) const noexcept;

  DevicePtr device_;
  CUlibrary library_;
};

}  // namespace rose::driver
