// Loans of slabs: each has a certificate, and the log has all moves in their order.
#include "check.h"
#include "coserving/certified_admission.h"
#include "coserving/move_log.h"
#include "memory/host_memfd.h"
#include "scene.h"
#include "together.h"

using namespace rose;
using namespace rose::memory;
using namespace rose::test;

namespace {

constexpr Nanoseconds kTtl = 60'000 * kMs;

// Sixteen slabs of four blocks; serving owns two.
struct Loans {
  Loans() {
    Pool pool = Pool::create(std::make_unique<HostMemfd>(), {4096, 16, 2}).take();
    arbiter =
        Arbiter::create(std::move(pool), scene.clock, std::make_shared<MoveLog>(scene.log)).take();
    serving = arbiter->add_partition("serving", 2, 16).take();
    rollout = arbiter->add_partition("rollout", 0, 14).take();
    CHECK(arbiter->take(serving, 2).ok());
    CHECK(arbiter->add_allocator(serving, {1024, 4096, 0}).ok());
    CHECK(arbiter->add_allocator(rollout, {1024, 8192, 0}).ok());
    demand = Demand::create({.blocks_per_slab = 4,
                             .block_tokens = 16,
                             .step_tokens = 320,
                             .request_tokens = 320,
                             .burst_requests = 0,
                             .horizon_ms = 10,
                             .memory_ms = 1000,
                             .epsilon = 0.1,
                             .window = 64},
                            known_model(), scene.clock)
                 .take();
    admission = std::make_unique<CertifiedAdmission>(serving, demand, scene.log, scene.state);
  }

  std::int32_t lend(std::int32_t slabs) {
    const GrantAnswer answer = arbiter->grant(rollout, slabs, kTtl, admission.get()).take();
    if (answer.refusal) CHECK_EQ(*answer.refusal, GrantRefusal::kAtRisk);
    return static_cast<std::int32_t>(answer.grant.slabs.size());
  }

  Scene scene;
  std::unique_ptr<Arbiter> arbiter;
  PartitionId serving{kNobody};
  PartitionId rollout{kNobody};
  std::shared_ptr<Demand> demand;
  std::unique_ptr<CertifiedAdmission> admission;
};

// Every grant in the log must directly follow its certificate, with no other move in between.
std::uint64_t certified_grants(Loans& loans) {
  std::uint64_t grants = 0;
  std::uint64_t epoch = 0;
  std::optional<AdmissionRecord> admitted;
  for (const LoggedRecord& record : records_of(*loans.scene.log, loans.scene.file)) {
    if (record.kind == RecordKind::kAdmission) {
      CHECK(!admitted.has_value());  // no other borrower's request came in between
      admitted = record.as<AdmissionRecord>();
    } else if (record.kind == RecordKind::kMove) {
      const auto move = record.as<MoveRecord>();
      CHECK(move.epoch > epoch);
      epoch = move.epoch;
      if (move.move_kind == static_cast<std::uint32_t>(MoveKind::kGrant)) {
        CHECK(admitted.has_value());
        CHECK_EQ(admitted->slabs, move.slabs);
        CHECK_EQ(admitted->epoch + 1, move.epoch);
        ++grants;
      }
      admitted.reset();
    }
  }
  return grants;
}

}  // namespace

TEST(loan_follows_its_certificate_in_the_log) {
  Loans loans;
  CHECK_EQ(loans.lend(3), 3);
  CHECK_EQ(certified_grants(loans), 1);
}

TEST(certificate_lends_no_more_than_serving_can_spare) {
  Loans loans;
  const std::int32_t lent = loans.lend(14);
  CHECK(lent > 0);
  CHECK(lent < 14);
  CHECK_EQ(loans.lend(1), 0);
  CHECK_EQ(loans.scene.log->count(RecordKind::kAdmission), 1);
}

TEST(certificate_counts_the_requests_that_are_live) {
  Loans idle;
  Loans busy;
  for (int request = 0; request < 20; ++request) (void)busy.scene.state->arrived(10);
  CHECK(busy.lend(14) < idle.lend(14));
}

TEST(without_a_record_nothing_is_lent) {
  Loans loans;
  CHECK(loans.scene.log->close().ok());
  CHECK_EQ(loans.lend(1), 0);
}

TEST(admissions_of_many_threads_are_recorded_under_the_arbiters_lock) {
  Loans loans;
  from_eight_threads([&] {
    for (int round = 0; round < 100; ++round) {
      (void)loans.lend(1);
      const std::uint32_t slot = loans.scene.state->arrived(10);
      CHECK(loans.arbiter->give_idle(loans.rollout).ok());
      CHECK(loans.scene.state->finished(slot));
    }
  });
  CHECK(certified_grants(loans) > 0);
  CHECK(loans.arbiter->check_invariants().ok());
}
