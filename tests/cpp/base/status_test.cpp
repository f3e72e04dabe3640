#include "base/status.h"

#include <cerrno>
#include <memory>

#include "check.h"

using rose::Code;
using rose::Result;
using rose::Status;

namespace {

Status passes_up(bool fails) {
  ROSE_TRY(fails ? Status::corrupt("inner") : Status{});
  return Status::unavailable("reached the end");
}

Status checks(bool holds) {
  ROSE_CHECK(holds, "must hold");
  return {};
}

Result<std::unique_ptr<int>> makes(bool fails) {
  if (fails) return Status::out_of_memory("none left");
  return std::make_unique<int>(7);
}

}  // namespace

TEST(default_status_is_ok) {
  const Status status;
  CHECK(status.ok());
  CHECK(status.code() == Code::kOk);
  CHECK(status.message().empty());
}

TEST(each_factory_has_its_code) {
  CHECK(Status::invalid_argument("").code() == Code::kInvalidArgument);
  CHECK(Status::out_of_memory("").code() == Code::kOutOfMemory);
  CHECK(Status::unavailable("").code() == Code::kUnavailable);
  CHECK(Status::deadline_exceeded("").code() == Code::kDeadlineExceeded);
  CHECK(Status::corrupt("").code() == Code::kCorrupt);
  CHECK(Status::internal("").code() == Code::kInternal);
}

TEST(try_passes_only_failures_up) {
  CHECK(passes_up(true).code() == Code::kCorrupt);
  CHECK(passes_up(true).message() == "inner");
  CHECK(passes_up(false).code() == Code::kUnavailable);
}

TEST(check_reports_a_bug_and_goes_on) {
  CHECK(checks(true).ok());
  CHECK(checks(false).code() == Code::kInternal);
}

TEST(result_is_a_value_or_a_status) {
  Result<std::unique_ptr<int>> made = makes(false);
  CHECK(made.ok());
  CHECK(*made.take() == 7);
  CHECK(makes(true).status().code() == Code::kOutOfMemory);
}

TEST(errno_gets_the_code_that_fits) {
  CHECK(rose::from_errno("call", ENOMEM).code() == Code::kOutOfMemory);
  CHECK(rose::from_errno("call", EINVAL).code() == Code::kInvalidArgument);
  CHECK(rose::from_errno("call", EPERM).code() == Code::kUnavailable);
  CHECK(rose::from_errno("call", EPERM).message().starts_with("call: "));
}
