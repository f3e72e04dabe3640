// No device code: the answer of a build without nvcc.
#include "driver/kernel_library.h"

namespace rose::driver {

std::span<const Fatbin> embedded_fatbins() noexcept { return {}; }

}  // namespace rose::driver
