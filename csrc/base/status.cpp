#include "base/status.h"

#include <array>
#include <cerrno>
#include <cstdio>
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

std::string text_of(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

}  // namespace rose
