#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace rose {

Status from_errno(const char* what, int error) noexcept {
  char buffer[128];
  const char* reason = ::strerror_r(error, buffer, sizeof buffer);
  std::string message = std::string{what} + ": " + reason;
  if (error == ENOMEM || error == ENOSPC) return Status::out_of_memory(std::move(message));
  if (error == EINVAL) return Status::invalid_argument(std::move(message));
  return Status::unavailable(std::move(message));
}

}  // namespace rose
