#include "coserving/lending_device.h"

#include <array>

#include "check.h"
#include "log_file.h"
#include "memory/host_memfd.h"

using namespace rose;
using namespace rose::coserving;
using rose::test::LoggedRecord;
using rose::test::MemoryFile;
using rose::test::records_of;

namespace {

constexpr Nanoseconds kMs = 1'000'000;
constexpr Nanoseconds kBudgetNs = 20 * kMs;

LendingConfig config(const std::string& path = "") {
  return {.targets = {.ttft_ms = 60'000,
                      .tpot_ms = 60'000,
                      .epsilon = 0.1,
                      .blocking_ms = 60'000,
                      .heartbeat_ttl_ns = 600'000 * kMs,
                      .max_segments = 4,
                      .revoke_ms = 10,
                      .wait_budget_ns = kBudgetNs,
                      .park_wait_ms = 10},
          .log_path = path,
          .reserve_slabs = 2,
          .serving_block_bytes = 1024,
          .borrower_block_bytes = 512,
          .block_tokens = 16,
          .next = {.largest_step = {1, 64, 0}, .largest_chunk = {0, 64, 64}},
          .step_prior_ms = {10, 0, 0, 0, 0},
          .segment_prior_ms = 1};
}

memory::Pool pool() {
  return memory::Pool::create(std::make_unique<memory::HostMemfd>(), {4096, 8, 2}).take();
}

std::unique_ptr<LendingDevice> started(const std::string& path = "") {
  auto device = LendingDevice::create(pool(), config(path)).take();
  for (const slo::Features& shape : {config().next.largest_step, config().next.largest_chunk}) {
    while (device->model().evidence(shape).value().missing > 0) {
      CHECK(device->model().observe(shape, 10).ok());
    }
  }
  CHECK(device->start().ok());
  return device;
}

}  // namespace

TEST(slabs_and_segments_are_lent_under_recorded_certificates_and_come_back) {
  const MemoryFile file;
  const auto device = started(file.path());
  CHECK_EQ(device->lend(3, 60'000 * kMs).take().grant.slabs.size(), 3);
  device->gate().begin_step();
  CHECK_EQ(device->gate().pass(60'000 * kMs), compute::Verdict::kPassed);
  CHECK(device->certifier().granted(slo::HarvestMode::kIdle) > 0);
  device->gate().leave();
  device->gate().end_step();
  CHECK_EQ(device->take_back(3, 60'000 * kMs).take().returned, 3);
  CHECK(device->arbiter().check_invariants().ok());
  CHECK(device->close().ok());
  std::array<int, slo::kKinds> counts{};
  for (const LoggedRecord& one : records_of(file)) ++counts[static_cast<std::size_t>(one.kind)];
  CHECK_EQ(counts[static_cast<std::size_t>(slo::RecordKind::kAdmission)], 1);
  CHECK_EQ(counts[static_cast<std::size_t>(slo::RecordKind::kRevokeBegun)], 1);
  CHECK(counts[static_cast<std::size_t>(slo::RecordKind::kQuantum)] > 0);
}

TEST(lending_ends_when_a_stuck_segment_has_spent_the_wait_budget_and_steps_go_on) {
  const auto device = started();
  device->gate().begin_step();
  CHECK_EQ(device->gate().pass(60'000 * kMs), compute::Verdict::kPassed);
  Nanoseconds excess_ns = 0;
  for (bool is_spent = false; !is_spent;) {
    CHECK(device->steps().begin(std::nullopt, true).is_blocked);
    const SegmentWait wait = device->wait_parked();
    is_spent = wait.is_spent;
    excess_ns += wait.excess_ns;
    CHECK(device->steps().end({.batch = {1, 64, 0}}).ok());
  }
  CHECK_EQ(excess_ns, kBudgetNs);
  CHECK(device->gate().is_shut_down());
  CHECK(device->steps().begin(std::nullopt, true).is_blocked);
  CHECK_EQ(device->wait_parked().waited_ns, 0);
  CHECK(device->steps().end({.batch = {1, 64, 0}}).ok());
}

TEST(after_close_no_segment_starts) {
  const auto device = started();
  device->gate().begin_step();
  CHECK(device->close().ok());
  CHECK_EQ(device->gate().pass(60'000 * kMs), compute::Verdict::kShutDown);
}

TEST(sizes_that_do_not_fit_are_rejected_and_nothing_is_left_running) {
  LendingConfig wrong = config();
  wrong.serving_block_bytes = 0;
  CHECK_EQ(LendingDevice::create(pool(), wrong).status().code(), Code::kInvalidArgument);
  wrong = config();
  wrong.reserve_slabs = 9;
  CHECK_EQ(LendingDevice::create(pool(), wrong).status().code(), Code::kInvalidArgument);
  wrong = config();
  wrong.segment_prior_ms = 0;
  CHECK_EQ(LendingDevice::create(pool(), wrong).status().code(), Code::kInvalidArgument);
}
