// A device for a serving engine in C++: all parts of lending, joined.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "coserving/certified_admission.h"
#include "coserving/serving_steps.h"
#include "memory/arbiter.h"

namespace rose::coserving {

struct LendingConfig {
  // The user's targets, and the limits of certificates. create() fills in the pool and the sizes of
  // serving's work.
  slo::LogHeader targets;
  std::string log_path;           // empty: records are only counted
  std::int32_t reserve_slabs{0};  // never lent
  // Blocks of serving and of the borrower, both in one slab. The pool has a header slab for each.
  std::size_t serving_block_bytes{0};
  std::size_t borrower_block_bytes{0};
  std::uint32_t block_tokens{0};          // of serving
  slo::NextRequest next;                  // also the largest sizes of serving's work
  std::array<double, 5> step_prior_ms{};  // as LatencyConfig::prior_ms
  double segment_prior_ms{0};
};

// One serving engine and one borrower in this process. The engine runs steps(), reports requests to
// state(), and calls state().beat() in its own loop, more often than the heartbeat's TTL: this
// object has no thread that beats for it. The borrower passes gate() before each segment.
//
// 1. Slabs are lent only under an ADMISSION, and segments start only under a QUANTUM.
// 2. Serving waits for segments beyond their certificates at most for the log's wait budget. When
//    it is spent, lending ends for good, and steps() goes on without it.
// 3. After close(), or the destructor, no segment starts and the log is complete.
//
// Thread rule: any thread; see the parts for theirs.
class LendingDevice {
 public:
  static constexpr std::uint32_t kPartitions = 2;

  // InvalidArgument if a size does not fit. After an error nothing is left running.
  static Result<std::unique_ptr<LendingDevice>> create(memory::Pool pool, LendingConfig config);
  LendingDevice(const LendingDevice&) = delete;
  LendingDevice& operator=(const LendingDevice&) = delete;
  ~LendingDevice() { static_cast<void>(close()); }

  // Lets steps lend, and starts the creditor. Before that, run steps of the shapes in
  // LendingConfig::next until model() has evidence for them.
  Status start() noexcept;
  Status close() noexcept;

  // Waits for the segment that still runs if StepBegun::is_blocked, at most for its certified
  // length and what is left of the wait budget. Serving's thread calls it.
  SegmentWait wait_parked() noexcept;
  // As Arbiter::grant(), under a certificate.
  Result<memory::GrantAnswer> lend(std::int32_t slabs, Nanoseconds ttl_ns) noexcept;
  // Takes back up to `slabs` slabs for serving, and waits up to `timeout_ns` until they are free.
  Result<memory::RevocationProgress> take_back(std::int32_t slabs, Nanoseconds timeout_ns) noexcept;

  ServingSteps& steps() noexcept { return *steps_; }
  slo::ServingState& state() noexcept { return *parts_.state; }
  slo::LatencyModel& model() noexcept { return *parts_.model; }
  compute::HostGate& gate() noexcept { return *parts_.gate; }
  const slo::QuantumCertifier& certifier() const noexcept { return parts_.creditor->certifier(); }
  memory::Arbiter& arbiter() noexcept { return *arbiter_; }
  memory::BlockAllocator& serving_blocks() noexcept { return *serving_blocks_; }
  memory::BlockAllocator& borrower_blocks() noexcept { return *borrower_blocks_; }

 private:
  LendingDevice() = default;
  Status join(memory::Pool pool, const LendingConfig& config);
  void end_lending() noexcept;

  ServingParts parts_;
  std::shared_ptr<memory::Arbiter> arbiter_;
  memory::PartitionId serving_{memory::kNobody};
  memory::PartitionId borrower_{memory::kNobody};
  memory::BlockAllocator* serving_blocks_{nullptr};
  memory::BlockAllocator* borrower_blocks_{nullptr};
  std::unique_ptr<CertifiedAdmission> admission_;
  std::unique_ptr<ServingSteps> steps_;
};

}  // namespace rose::coserving
