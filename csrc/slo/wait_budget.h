// Limits the time that serving waits for running segments beyond their certified length.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace rose::slo {

// An excess is charged after each wait, and counts for ten minutes. A wait first reserves what is
// left, so waits of several threads never exceed the budget together.
//
// 1. The excesses of any ten minutes sum to at most `budget_ns`, whatever a caller charges (I70).
// 2. An excess counts until the whole second in which it was charged is more than kWindowS seconds
//    old, so it counts for at least kWindowS seconds. A verifier recomputes the sums from this
//    rule.
//
// Not for several threads at once: the log's mutex guards the budget.
class WaitBudget {
 public:
  static constexpr std::int64_t kWindowS = 600;

  explicit WaitBudget(Nanoseconds budget_ns) noexcept : budget_ns_{budget_ns} {}

  Nanoseconds budget_ns() const noexcept { return budget_ns_; }
  // Sum of the excesses that count at `now_ns`, which never decreases from call to call.
  Nanoseconds spent_ns(Nanoseconds now_ns) noexcept {
    forget(now_ns / kSecondNs);
    return spent_ns_;
  }
  Nanoseconds left_ns(Nanoseconds now_ns) noexcept { return budget_ns_ - spent_ns(now_ns); }
  // Reserves everything that no other wait has reserved, and returns it. settle() must follow.
  Nanoseconds reserve(Nanoseconds now_ns) noexcept {
    const Nanoseconds free_ns = left_ns(now_ns) - reserved_ns_;
    reserved_ns_ += free_ns;
    return free_ns;
  }
  // Ends a reservation. Charges `excess_ns`, but at most the reservation; returns the charge.
  Nanoseconds settle(Nanoseconds now_ns, Nanoseconds reserved_ns, Nanoseconds excess_ns) noexcept {
    forget(now_ns / kSecondNs);
    reserved_ns_ -= reserved_ns;
    const Nanoseconds charged_ns = std::clamp<Nanoseconds>(excess_ns, 0, reserved_ns);
    seconds_[slot(newest_s_)] += charged_ns;
    spent_ns_ += charged_ns;
    return charged_ns;
  }

 private:
  static constexpr Nanoseconds kSecondNs = 1'000'000'000;
  // The second of now, and the kWindowS seconds before it.
  static constexpr std::size_t kSlots = static_cast<std::size_t>(kWindowS) + 1;

  static std::size_t slot(std::int64_t second) noexcept {
    return static_cast<std::size_t>(second) % kSlots;
  }
  void forget(std::int64_t now_s) noexcept {
    // After a longer pause every slot is cleared once.
    const std::int64_t first_s = std::max(newest_s_ + 1, now_s - kWindowS);
    for (std::int64_t second = first_s; second <= now_s; ++second) {
      spent_ns_ -= seconds_[slot(second)];
      seconds_[slot(second)] = 0;
    }
    newest_s_ = std::max(newest_s_, now_s);
  }

  Nanoseconds budget_ns_;
  Nanoseconds spent_ns_{0};
  Nanoseconds reserved_ns_{0};
  std::int64_t newest_s_{0};
  std::array<Nanoseconds, kSlots> seconds_{};  // charges by the second of their record
};

}  // namespace rose::slo
