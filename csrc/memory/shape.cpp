#include "memory/shape.h"

#include <unistd.h>

#include <limits>
#include <string>

namespace rose::memory {

Status check_shape(const PoolShape& shape) noexcept {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (shape.slab_bytes == 0 || shape.slab_bytes % page_bytes != 0) {
    return Status::invalid_argument("slab_bytes must be a positive multiple of the page of " +
                                    std::to_string(page_bytes) + " bytes, got " +
                                    std::to_string(shape.slab_bytes));
  }
  if (shape.slab_count < 1) {
    return Status::invalid_argument("slab_count must be at least 1, got " +
                                    std::to_string(shape.slab_count));
  }
  if (shape.header_slabs < 0) {
    return Status::invalid_argument("header_slabs must be at least 0, got " +
                                    std::to_string(shape.header_slabs));
  }
  const auto slabs =
      static_cast<std::size_t>(shape.slab_count) + static_cast<std::size_t>(shape.header_slabs);
  if (shape.slab_bytes > std::numeric_limits<std::int64_t>::max() / slabs) {
    return Status::invalid_argument("a pool of " + std::to_string(slabs) + " slabs of " +
                                    std::to_string(shape.slab_bytes) +
                                    " bytes exceeds the address space");
  }
  return {};
}

}  // namespace rose::memory
