// Loans of slabs: each has a certificate, and the log has all moves in their order.
#include "loans.h"
#include "check.h"
#include "together.h"

using namespace rose;
using namespace rose::memory;
using namespace rose::test;

namespace {

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
      CHECK(loans.arbiter->revoke(loans.rollout, 1, kTtl, kNobody).ok());
      CHECK(loans.scene.state->finished(slot));
    }
  });
  CHECK(certified_grants(loans) > 0);
  CHECK(loans.arbiter->check_invariants().ok());
}
