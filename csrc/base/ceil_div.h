// Division that rounds up.
#pragma once

#include <cstdint>

namespace rose {

constexpr std::uint64_t ceil_div(std::uint64_t count, std::uint64_t by) noexcept {
  return count / by + (count % by != 0 ? 1 : 0);
}

}  // namespace rose
