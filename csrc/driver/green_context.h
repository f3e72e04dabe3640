// A share of a device's multiprocessors for the borrower. Serving keeps the primary context and all
// of them: a share does not reserve them against other contexts.
#pragma once

#include <memory>
#include <utility>

#include "driver/stream.h"

namespace rose::driver {

// Owns one green context. Its streams keep it alive.
class GreenContext : public std::enable_shared_from_this<GreenContext> {
 public:
  // At least `multiprocessors` of them; what was given is multiprocessors(). Unavailable on a
  // driver without green contexts, InvalidArgument for none or for more than the device has.
  static Result<std::shared_ptr<GreenContext>> create(DevicePtr device,
                                                      unsigned multiprocessors) noexcept;
  ~GreenContext();
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;

  unsigned multiprocessors() const noexcept { return multiprocessors_; }
  Result<std::unique_ptr<Stream>> create_stream(Priority priority) noexcept;

 private:
  GreenContext(DevicePtr device, CUgreenCtx context, unsigned multiprocessors) noexcept
      : device_{std::move(device)}, context_{context}, multiprocessors_{multiprocessors} {}

  DevicePtr device_;
  CUgreenCtx context_;
  unsigned multiprocessors_;
};

}  // namespace rose::driver
