// The device code that is embedded in the extension, loaded and launched through the driver.
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

inline constexpr std::uint64_t kBlocksMax = (std::uint64_t{1} << 31) - 1;  // of a grid, along x
struct Grid {
  unsigned blocks{1};
  unsigned threads{1};
  unsigned shared_bytes{0};
};

// Owns one loaded fat binary. The driver loads a library lazily unless it is told otherwise, so
// kernel() has its code put on the device, never a launch: a first launch that loads can wait for a
// stream that a closed gate holds. Any thread.
class KernelLibrary {
 public:
  // Unavailable when this build has no device code, or none of that name.
  static Result<std::shared_ptr<const KernelLibrary>> create(DevicePtr device,
                                                             std::string_view name) noexcept;
  // The same for a fat binary that is not embedded; the driver keeps no pointer into it.
  static Result<std::shared_ptr<const KernelLibrary>> create(DevicePtr device,
                                                             const Fatbin& fatbin) noexcept;
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  const DevicePtr& device() const noexcept { return device_; }
  // Loads the kernel onto the device; call it before serving starts.
  Result<CUkernel> kernel(const char* name) const noexcept;

  // `arguments` are passed by value; their types are the kernel's own, to the bit.
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
