// Serving, its gate and the certified creditor, with a log in memory and times that a test sets.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "check.h"
#include "coserving/certified_creditor.h"
#include "coserving/gate_listener.h"
#include "log_file.h"

namespace rose::test {

using namespace rose::compute;
using namespace rose::coserving;
using namespace rose::slo;

inline constexpr Nanoseconds kMs = 1'000'000;
inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Targets that leave room for a quantum of four segments of a millisecond. Without slowdown only
// idle quanta are granted.
inline constexpr LogHeader kIdleOnly{.ttft_ms = 1000,
                                     .tpot_ms = 500,
                                     .signal_ms = 1,
                                     .blocking_ms = 100,
                                     .heartbeat_ttl_ns = 1'000'000 * kMs,
                                     .max_segments = 4};
inline constexpr LogHeader with_slack() {
  LogHeader header = kIdleOnly;
  header.slowdown = kNoLimit;
  return header;
}

// A model of steps of 10 ms that has evidence for every kind of step.
inline std::shared_ptr<LatencyModel> known_model() {
  std::shared_ptr<LatencyModel> model =
      LatencyModel::create({.prior_ms = {10, 0, 0, 0, 0}, .step_tokens = 400}).take();
  for (const double prefill : {0.0, 1.0, 400.0}) {
    const Features step{1, 0, prefill};
    while (model->evidence(step).value().missing > 0) CHECK(model->observe(step, 10).ok());
  }
  return model;
}

struct Scene {
  explicit Scene(const LogHeader& header = kIdleOnly,
                 std::shared_ptr<const Clock> time = std::make_shared<ManualClock>())
      : clock{std::move(time)},
        log{CertificateLog::create(file.path(), header, clock).take()},
        gate{HostGate::create(clock).take()},
        state{std::make_shared<ServingState>(log, std::make_shared<GateListener>(gate, header))},
        certified{
            CertifiedCreditor::create(gate, state, known_model(), log, config(), clock).take()} {
    state->beat();
  }

  static CertifiedCreditorConfig config() {
    return {.next = {.largest_step = {1, 0, 0}, .largest_chunk = {0, 0, 400}},
            .segments = {.prior_ms = 1, .share = 0.99},
            .retry_ns = kMs,
            .poll_ns = 5 * kMs};
  }

  // A request that has its first token.
  std::uint32_t running_request() {
    const std::uint32_t slot = state->arrived(10);
    CHECK_EQ(state->emitted(std::vector{slot}), 1);
    return slot;
  }

  const MemoryFile file;
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<CertificateLog> log;
  std::shared_ptr<HostGate> gate;
  std::shared_ptr<ServingState> state;
  std::shared_ptr<CertifiedCreditor> certified;
};

}  // namespace rose::test
