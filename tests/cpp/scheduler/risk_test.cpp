#include "scheduler/risk.h"

#include <cstdint>
#include <random>
#include <vector>

#include "check.h"

using namespace rose;
using namespace rose::scheduler;

namespace {

constexpr Settings kSettings{.exposure_max_s = 2, .urgent_share_max = 0.5};

TEST(old_observations_fade) {
  Revocations seen{.count = 100, .exposed_s = 100};
  for (int i = 0; i < 1000; ++i) seen.expose(1, 100);
  CHECK_EQ(seen.exposed_s, 100.0);
  CHECK(seen.count < 0.1);
}

TEST(exposure_of_a_job_is_the_sum_over_its_domains) {
  std::mt19937_64 random{2};
  ExposureTable table{kSettings};
  std::vector<std::vector<Exposed>> plain(3, std::vector<Exposed>(4));
  for (int round = 0; round < 2000; ++round) {
    const std::size_t job = random() % 3;
    const std::size_t domain = random() % 4;
    const Exposed more{.tokens = static_cast<std::int64_t>(random() % 100),
                       .urgent = static_cast<std::int64_t>(random() % 2),
                       .prefill_tokens_per_s = static_cast<std::int64_t>(random() % 9)};
    const std::int64_t sign = random() % 3 == 0 ? -1 : 1;
    plain[job][domain].add(more, sign);
    sign > 0 ? table.add(job, domain, more) : table.remove(job, domain, more);
    std::int64_t tokens = 0;
    for (std::size_t d = 0; d < 4; ++d) tokens += plain[job][d].tokens;
    CHECK_EQ(table.all(job).tokens, tokens);
    CHECK_EQ(table.of(job, domain).urgent, plain[job][domain].urgent);
  }
  CHECK_EQ(table.of(9, 9).tokens, 0);
}

TEST(urgent_turns_take_at_most_their_share_of_a_domain) {
  ExposureTable table{kSettings};
  table.add(0, 0, {.prefill_tokens_per_s = 1'000'000});
  table.add(0, 1, {.prefill_tokens_per_s = 1'000'000});
  table.add(0, 0, {.tokens = 1, .urgent = 1});
  CHECK(!table.can_join(0, 0, 1, true));
  CHECK(table.can_join(0, 0, 1, false));
  CHECK(table.can_join(0, 1, 1, true));
  table.add(0, 1, {.tokens = 1, .urgent = 1});
  CHECK(table.can_join(0, 0, 1, true));
}

}  // namespace
