// The outcome of a call: ok, a failure outside rose, or a bug in rose. A refusal is a value of its
// own, never a Status.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace rose {

enum class Code : std::uint8_t {
  kOk = 0,
  kInvalidArgument,
  kOutOfMemory,
  kUnavailable,
  kDeadlineExceeded,
  kCorrupt,
  kInternal,
};

// Outcome of a call that can fail. Cheap when ok: no allocation.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(Code code, std::string message) noexcept : code_{code}, message_{std::move(message)} {}

  static Status invalid_argument(std::string message) noexcept {
    return {Code::kInvalidArgument, std::move(message)};
  }
  static Status out_of_memory(std::string message) noexcept {
    return {Code::kOutOfMemory, std::move(message)};
  }
  static Status unavailable(std::string message) noexcept {
    return {Code::kUnavailable, std::move(message)};
  }
  static Status deadline_exceeded(std::string message) noexcept {
    return {Code::kDeadlineExceeded, std::move(message)};
  }
  static Status corrupt(std::string message) noexcept {
    return {Code::kCorrupt, std::move(message)};
  }
  static Status internal(std::string message) noexcept {
    return {Code::kInternal, std::move(message)};
  }

  bool ok() const noexcept { return code_ == Code::kOk; }
  Code code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }

 private:
  Code code_{Code::kOk};
  std::string message_;
};

// Formats a number for a message, with at most six digits, such as 0.05 or 1e-09.
std::string text_of(double value);

// A value, or the Status of the failure.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) noexcept : value_{std::move(value)} {}
  Result(Status status) noexcept : status_{std::move(status)} {}

  bool ok() const noexcept { return value_.has_value(); }
  const Status& status() const noexcept { return status_; }
  T& value() noexcept { return *value_; }
  const T& value() const noexcept { return *value_; }
  T take() noexcept { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

// Converts the errno of a failed system call to a Status: "what: reason".
Status from_errno(const char* what, int error) noexcept;

}  // namespace rose

// Evaluates a Status; if it is a failure, returns it from the enclosing function.
#define ROSE_TRY(expression)                             \
  do {                                                   \
    ::rose::Status rose_try_status_ = (expression);      \
    if (!rose_try_status_.ok()) return rose_try_status_; \
  } while (false)

// Returns kInternal from the enclosing function if the condition is false. A broken invariant is a
// bug in rose, but must not abort the host process.
#define ROSE_CHECK(condition, message)                          \
  do {                                                          \
    if (!(condition)) return ::rose::Status::internal(message); \
  } while (false)
