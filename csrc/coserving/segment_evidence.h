// Measures the length of the borrower's segments, and limits serving's waits for them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "compute/host_gate.h"
#include "slo/certificate_log.h"

namespace rose::coserving {

// One wait of serving for a running segment.
struct SegmentWait {
  Nanoseconds waited_ns{0};
  Nanoseconds excess_ns{0};  // part beyond the certified length, charged to the wait budget
  bool has_ended{true};      // false: the segment still ran when the wait ended
  bool is_spent{false};      // true: it overran its certificate, and the wait budget is empty
};

struct SegmentConfig {
  double prior_ms{0};  // > 0: length before any measurement
  double share{1};     // share of recent segments that are no longer than the length
};

struct SegmentLength {
  double upper_ms{0};       // certificates count a segment with this length
  bool is_measured{false};  // false: it is the prior
};

// 1. A length that was measured is certified until newer segments are measured (I72). Silence is no
//    evidence, so neither a pause nor another borrower brings the prior back.
// 2. The borrower writes the measured lengths into the gate's page. Serving also measures each of
//    its own waits that exceeds the certificate. This length is kept in serving's memory, and
//    counts until segments end 5 s later. A trial that has ended replaces all earlier lengths.
// 3. A wait that timed out only shows that the segment was longer, so it never lowers the length.
// 4. While the length does not fit, one segment may run as a trial: 1 s after the first refusal,
//    then after twice the time of the last trial, at most ten minutes.
//
// The deciders, which hold HostGate::granting(), call length(), fits(), may_try() and tried().
// Serving's thread calls wait(). The mutex is not held during a wait.
class SegmentEvidence {
 public:
  // First and longest pause before a trial.
  static constexpr Nanoseconds kFirstTrialNs = 1'000'000'000;
  static constexpr Nanoseconds kTrialMaxNs = 600'000'000'000;

  SegmentEvidence(std::shared_ptr<compute::HostGate> gate, std::shared_ptr<slo::CertificateLog> log,
                  std::shared_ptr<const Clock> clock, SegmentConfig config) noexcept
      : gate_{std::move(gate)}, log_{std::move(log)}, clock_{std::move(clock)}, config_{config} {}

  // Waits until no segment runs, at most for the certified length and the wait budget that is left.
  SegmentWait wait(std::uint32_t borrower) noexcept;

  SegmentLength length() noexcept;
  double prior_ms() const noexcept { return config_.prior_ms; }
  // Reports that a quantum was granted without a trial; the next refusal starts with a short pause.
  void fits() noexcept;
  // True if a trial is due. Call it only after a refusal because of the length, and while no
  // segment is outstanding.
  bool may_try() noexcept;
  // Reports that a trial was granted after segment number `passed`.
  void tried(std::uint32_t passed) noexcept;

 private:
  void note(Nanoseconds waited_ns, bool has_ended) noexcept;

  std::shared_ptr<compute::HostGate> gate_;
  std::shared_ptr<slo::CertificateLog> log_;
  std::shared_ptr<const Clock> clock_;
  SegmentConfig config_;

  std::mutex mutex_;            // guards the members below
  Nanoseconds measured_ns_{0};  // newest quantile of the lengths in the gate's page
  Nanoseconds waited_ns_{0};    // longest wait that counts
  Nanoseconds waited_at_ns_{0};
  Nanoseconds pause_ns_{0};  // pause before the next trial; 0 while the length fits
  Nanoseconds try_at_ns_{0};
  std::optional<std::uint32_t> trial_;  // `passed` before the newest trial, until it has ended
  Nanoseconds tried_at_ns_{0};
  Nanoseconds since_ns_{0};  // segments that ended earlier do not count
};

}  // namespace rose::coserving
