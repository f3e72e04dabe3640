#include "memory/shape.h"

#include <unistd.h>

#include <limits>
#include <string>

namespace rose::memory {

Status check_shape(const PoolShape& shape) noexcept {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (shape.slab_bytes == 0 || shape.slab_bytes % page_bytes != 0) {
    return Status::invalid_argument("slab_bytes of " + std::to_string(shape.slab_bytes) +
                                    " is not a multiple of the page of " +
                                    std::to_string(page_bytes) + " bytes");
  }
  if (shape.slab_count < 1) return Status::invalid_argument("slab_count must be at least 1");
  if (shape.header_slabs < 0) return Status::invalid_argument("header_slabs must be at least 0");
  const auto slabs =
      static_cast<std::size_t>(shape.slab_count) + static_cast<std::size_t>(shape.header_slabs);
  if (shape.slab_bytes > std::numeric_limits<std::int64_t>::max() / slabs) {
    return Status::invalid_argument("the pool exceeds the address space");
  }
  return {};
}

}  // namespace rose::memory
