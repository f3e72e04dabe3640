// For the tests of the driver room: a device of the fake driver, some memory for streams, and the
// checks of the fake at the end of a test.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <string>

#include "../../fake_driver/controls.h"
#include "check.h"
#include "driver/device.h"
#include "driver/driver.h"
#include "memory/cuda_vmm.h"
#include "memory/pool.h"

namespace rose::test {

inline const Fake& fake() {
  static const Fake found;
  CHECK(found.log != nullptr);  // LD_LIBRARY_PATH leads to the fake
  return found;
}

// A copy, because the status often dies at the end of the line.
inline std::string says(const Status& status) { return status.message(); }

// No object is alive, no call was wrong, and no context of rose is current.
inline void check_clean() {
  CHECK_EQ(std::string{fake().faults()}, "");
  CHECK_EQ(std::string{fake().live()}, "");
  CHECK_EQ(fake().depth(), 0);
}

inline driver::DevicePtr open_device() {
  fake().reset();
  Result<driver::DriverPtr> driver = driver::Driver::open();
  CHECK_EQ(says(driver.status()), "");
  Result<driver::DevicePtr> device = driver::Device::open(driver.take(), 0);
  CHECK_EQ(says(device.status()), "");
  return device.take();
}

constexpr std::size_t kPage = std::size_t{2} << 20;

// Words in device memory; the fake's is memory of the host.
inline Result<memory::Pool> create_words(const driver::DevicePtr& device) {
  Result<std::unique_ptr<memory::CudaVmm>> backend = memory::CudaVmm::create(device);
  if (!backend.ok()) return backend.status();
  // In the header, which is zeros.
  return memory::Pool::create(backend.take(),
                              {.slab_bytes = kPage, .slab_count = 1, .header_slabs = 1});
}

inline driver::DevicePointer address_of(const memory::Pool& words, std::size_t index) {
  return std::bit_cast<driver::DevicePointer>(words.data()) + 4 * index;
}
inline volatile std::uint32_t& word(const memory::Pool& words, std::size_t index) {
  return *std::bit_cast<volatile std::uint32_t*>(address_of(words, index));
}

inline driver::MemoryOperation wait_for(driver::DevicePointer at, std::uint32_t value,
                                        unsigned relation = driver::kWaitGeq) {
  driver::MemoryOperation one{};
  one.operation = driver::kWaitValue32;
  one.address = at;
  one.value = value;
  one.flags = relation;
  return one;
}
inline driver::MemoryOperation write(driver::DevicePointer at, std::uint32_t value) {
  driver::MemoryOperation one{};
  one.operation = driver::kWriteValue32;
  one.address = at;
  one.value = value;
  return one;
}

// The tests' driver does not read it.
inline constexpr std::byte kCode[4]{};

}  // namespace rose::test
