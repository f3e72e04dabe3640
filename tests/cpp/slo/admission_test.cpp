#include "slo/admission.h"

#include <limits>
#include <random>

#include "check.h"

using namespace rose;
using namespace rose::slo;

namespace {

AdmissionTerms some_terms() {
  return {.epoch = 7,
          .to_partition = 1,
          .slabs = 2,
          .blocks_per_slab = 10,
          .block_tokens = 16,
          .free_serving_blocks = 5,
          .unowned_slabs = 6,
          .revocable_blocks = 3,
          .horizon_ms = 50,
          .running_requests = 4,
          .decode_tokens_per_s = 400,
          .prefill_tokens_per_s = 1000,
          .max_request_tokens = 400,
          .max_batch_tokens = 256,
          .burst_requests = 2,
          .burst_request_tokens = 17};
}

}  // namespace

TEST(every_term_is_counted_once) {
  const AdmissionBalance got = balance(some_terms());
  CHECK_EQ(got.growth_blocks, 4 * 2);  // 1 + 20 tokens: two blocks each
  CHECK_EQ(got.request_blocks, 21);    // min(400 + 2 * 17, 256 + 50) = 306 tokens, and 21
  CHECK_EQ(got.burst_blocks, 2 * 3);   // 21 tokens, and up to 15 that begin a block
  CHECK_EQ(got.demand_blocks, 35);
  CHECK_EQ(got.supply_blocks, 5 + 40 + 3);
  CHECK_EQ(got.slack_blocks, 13);
}

TEST(the_largest_grant_is_granted_and_one_more_is_not) {
  std::mt19937 random{29};
  for (int i = 0; i < 20000; ++i) {
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    AdmissionTerms terms{.blocks_per_slab = 1 + below(20),
                         .block_tokens = 1 + below(32),
                         .free_serving_blocks = below(60),
                         .unowned_slabs = below(12),
                         .revocable_blocks = below(20),
                         .horizon_ms = below(100) * 1.0,
                         .running_requests = below(6),
                         .decode_tokens_per_s = below(500) * 1.0,
                         .prefill_tokens_per_s = below(9000) * 1.0,
                         .max_request_tokens = below(900),
                         .max_batch_tokens = below(600),
                         .burst_requests = below(3),
                         .burst_request_tokens = below(300)};
    const std::uint32_t most = largest_grant(terms);
    CHECK(most <= terms.unowned_slabs);
    for (terms.slabs = 0; terms.slabs <= terms.unowned_slabs + 1; ++terms.slabs) {
      const auto answer = admission_certificate(terms, nullptr);
      CHECK(answer.ok());
      CHECK_EQ(answer.value().has_value(), terms.slabs > 0 && terms.slabs <= most);
    }
  }
}

TEST(a_certificate_is_recorded_first_and_without_a_record_there_is_none) {
  auto made = CertificateLog::create("", {}, std::make_shared<BootClock>());
  CHECK(made.ok());
  const auto log = made.take();
  AdmissionTerms modest = some_terms();
  CHECK(admission_certificate(modest, log.get()).value().has_value());
  CHECK_EQ(log->count(RecordKind::kAdmission), 1);
  AdmissionTerms greedy = some_terms();
  greedy.slabs = 4;
  CHECK(!admission_certificate(greedy, log.get()).value().has_value());
  CHECK_EQ(log->count(RecordKind::kAdmission), 1);
  CHECK(log->close().ok());
  CHECK(!admission_certificate(modest, log.get()).value().has_value());
}

TEST(a_certificate_counts_every_arrival_and_grants_what_they_leave) {
  auto made = CertificateLog::create("", {}, std::make_shared<BootClock>());
  const std::shared_ptr<CertificateLog> log{made.take()};
  ServingState serving{log, nullptr};
  AdmissionTerms terms = some_terms();
  serving.arrived(8);
  terms.slabs = 6;  // more than may be lent
  CHECK(admission_certificate(terms, log.get(), &serving).value().has_value());
  CHECK_EQ(terms.running_requests, 1U);
  CHECK_EQ(terms.slabs, 3U);  // 29 blocks are needed, and 8 are free
  for (int i = 0; i < 20; ++i) serving.arrived(8);
  CHECK(!admission_certificate(terms, log.get(), &serving).value().has_value());
  CHECK_EQ(terms.running_requests, 21U);
  CHECK_EQ(log->count(RecordKind::kAdmission), 1);
}

// At the limits that check() allows, no sum overflows.
TEST(the_largest_terms_do_not_overflow) {
  const std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
  const AdmissionTerms terms{.slabs = 1,
                             .blocks_per_slab = 1U << 24,
                             .block_tokens = 1,
                             .unowned_slabs = 1U << 24,
                             .horizon_ms = 1e7,
                             .running_requests = 1'000'000,
                             .decode_tokens_per_s = 1e8,
                             .prefill_tokens_per_s = 1e8,
                             .max_request_tokens = most,
                             .max_batch_tokens = most,
                             .burst_requests = 1'000'000,
                             .burst_request_tokens = most};
  CHECK(check(terms).ok());
  const AdmissionBalance got = balance(terms);
  CHECK(got.demand_blocks > got.growth_blocks && got.growth_blocks >= 1'000'000'000'000'000'000U);
  CHECK(got.slack_blocks < 0);
  CHECK_EQ(largest_grant(terms), 0U);
}

TEST(terms_without_a_meaning_are_invalid) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (auto* spoil : {+[](AdmissionTerms& t) { t.block_tokens = 0; },
                      +[](AdmissionTerms& t) { t.blocks_per_slab = 0; },
                      +[](AdmissionTerms& t) { t.unowned_slabs = 1U << 25; },
                      +[](AdmissionTerms& t) { t.horizon_ms = -1; },
                      +[](AdmissionTerms& t) { t.prefill_tokens_per_s = 1e12; },
                      +[](AdmissionTerms& t) { t.running_requests = 2'000'000; }}) {
    AdmissionTerms terms = some_terms();
    spoil(terms);
    CHECK_EQ(check(terms).code(), Code::kInvalidArgument);
    CHECK(!admission_certificate(terms, nullptr).ok());
  }
  AdmissionTerms terms = some_terms();
  terms.decode_tokens_per_s = nan;
  CHECK(!check(terms).ok());
}
