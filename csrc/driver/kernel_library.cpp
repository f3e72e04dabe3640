#include "driver/kernel_library.h"

#include <algorithm>
#include <string>

namespace rose::driver {

using LibraryPtr = std::shared_ptr<const KernelLibrary>;

Result<LibraryPtr> KernelLibrary::create(DevicePtr device, std::string_view name) noexcept {
  const std::span<const Fatbin> all = embedded_fatbins();
  const auto found = std::ranges::find(all, name, &Fatbin::name);
  if (found != all.end()) return create(std::move(device), *found);
  if (all.empty()) {
    return Status::unavailable(
        "this build of rose has no device code: build it with nvcc and ROSE_CUDA=on, which stops "
        "the build if nvcc is missing");
  }
  return Status::unavailable("this build of rose has no fat binary '" + std::string{name} + "'");
}

Result<LibraryPtr> KernelLibrary::create(DevicePtr device, const Fatbin& fatbin) noexcept {
  const Current current{*device};
  ROSE_TRY(current.status());
  CUlibrary library = nullptr;
  ROSE_TRY(ROSE_CU(device->driver(), cuLibraryLoadData, &library, fatbin.bytes.data(), nullptr,
                   nullptr, 0, nullptr, nullptr, 0));
  return LibraryPtr{new KernelLibrary{device, library}};
}

KernelLibrary::~KernelLibrary() {
  const Current current{*device_};
  device_->driver().entries().cuLibraryUnload(library_);
}

Result<CUkernel> KernelLibrary::kernel(const char* name) const noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  const Driver& driver = device_->driver();
  CUkernel kernel = nullptr;
  const Answer answer = driver.entries().cuLibraryGetKernel(&kernel, library_, name);
  if (answer == kNotFound) {
    return Status::invalid_argument("the fat binary has no kernel '" + std::string{name} + "'");
  }
  ROSE_TRY(driver.status("cuLibraryGetKernel", answer));
  CUfunction loaded = nullptr;
  ROSE_TRY(ROSE_CU(driver, cuKernelGetFunction, &loaded, kernel));
  return kernel;
}

Status KernelLibrary::allow_shared(CUkernel kernel, int size_bytes) const noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  return ROSE_CU(device_->driver(), cuKernelSetAttribute, kFunctionSharedBytes, size_bytes, kernel,
                 device_->handle());
}

Status KernelLibrary::launch_raw(CUkernel kernel, Grid grid, CUstream stream,
                                 void** arguments) const noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  // The driver accepts a library's kernel in place of a function.
  return ROSE_CU(device_->driver(), cuLaunchKernel, reinterpret_cast<CUfunction>(kernel),
                 grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared_bytes, stream, arguments,
                 nullptr);
}

}  // namespace rose::driver
