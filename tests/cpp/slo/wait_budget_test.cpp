#include "slo/wait_budget.h"

#include <deque>
#include <random>
#include <utility>

#include "check.h"

using namespace rose;
using namespace rose::slo;

namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;
constexpr Nanoseconds kBudget = kSecond;
constexpr Nanoseconds kWindow = WaitBudget::kWindowS * kSecond;

}  // namespace

TEST(excesses_of_any_ten_minutes_sum_to_at_most_the_budget) {
  std::mt19937_64 draw{7};
  for (int run = 0; run < 200; ++run) {
    WaitBudget budget{kBudget};
    std::deque<std::pair<Nanoseconds, Nanoseconds>> charged;  // time, excess
    Nanoseconds sum_ns = 0;
    // Some runs last for many windows, others only for a part of one.
    const Nanoseconds pause_ns = kSecond << draw() % 9;
    Nanoseconds now_ns = static_cast<Nanoseconds>(draw() % (2000 * kSecond));
    for (int wait = 0; wait < 200; ++wait) {
      now_ns += static_cast<Nanoseconds>(draw() % static_cast<std::uint64_t>(pause_ns));
      const Nanoseconds reserved_ns = budget.reserve(now_ns);
      CHECK(reserved_ns >= 0);
      const auto excess_ns = static_cast<Nanoseconds>(draw() % (kBudget / 2));
      const Nanoseconds took_ns = budget.settle(now_ns, reserved_ns, excess_ns);
      CHECK(took_ns <= excess_ns);
      charged.emplace_back(now_ns, took_ns);
      sum_ns += took_ns;
      while (now_ns - charged.front().first >= kWindow) {
        sum_ns -= charged.front().second;
        charged.pop_front();
      }
      CHECK(sum_ns <= kBudget);
      CHECK(budget.left_ns(now_ns) <= kBudget - sum_ns);
    }
  }
}

TEST(an_excess_is_forgotten_after_ten_minutes) {
  WaitBudget budget{kBudget};
  CHECK_EQ(budget.settle(5 * kSecond, budget.reserve(5 * kSecond), kBudget), kBudget);
  CHECK_EQ(budget.left_ns(5 * kSecond + kWindow), 0);
  CHECK_EQ(budget.left_ns(6 * kSecond + kWindow), kBudget);
}

TEST(two_waits_at_once_share_the_budget) {
  WaitBudget budget{kBudget};
  const Nanoseconds first_ns = budget.reserve(0);
  CHECK_EQ(first_ns, kBudget);
  CHECK_EQ(budget.reserve(0), 0);
  CHECK_EQ(budget.settle(kSecond, 0, kBudget), 0);
  CHECK_EQ(budget.settle(kSecond, first_ns, kBudget / 4), kBudget / 4);
  CHECK_EQ(budget.reserve(kSecond), kBudget / 4 * 3);
}
