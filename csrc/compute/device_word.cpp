#include "compute/device_word.h"

#include <unistd.h>

#include <bit>

namespace rose::compute {

// A device compares 32 bits, so the low half of `state` must come first.
static_assert(std::endian::native == std::endian::little);

Result<std::unique_ptr<DeviceWord>> DeviceWord::create(driver::DevicePtr device,
                                                       std::shared_ptr<HostGate> gate) noexcept {
  std::unique_ptr<DeviceWord> word{new DeviceWord{std::move(device), std::move(gate)}};
  const driver::Driver& driver = word->device_->driver();
  const driver::Current current{*word->device_};
  ROSE_TRY(current.status());
  std::byte* page = word->gate_->page();
  // The driver pins whole pages. The device uses only the gate word, which is in the first page.
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  ROSE_TRY(ROSE_CU(driver, cuMemHostRegister, page, page_bytes,
                   driver::kRegisterPortable | driver::kRegisterDeviceMap));
  word->is_registered_ = true;
  ROSE_TRY(ROSE_CU(driver, cuMemHostGetDevicePointer, &word->base_, page, 0));
  word->gate_->set_on_device(true);
  return word;
}

DeviceWord::~DeviceWord() {
  if (!is_registered_) return;
  gate_->set_on_device(false);
  const driver::Current current{*device_};
  device_->driver().entries().cuMemHostUnregister(gate_->page());
}

}  // namespace rose::compute
