#include "coserving/lending_device.h"

#include <utility>

#include "coserving/gate_listener.h"
#include "coserving/move_log.h"

namespace rose::coserving {

using memory::Arbiter;
using memory::BlockAllocator;
using memory::PartitionId;

namespace {

constexpr double kArrivalMemoryMs = 60'000;
constexpr std::uint32_t kWindow = 512;
constexpr Nanoseconds kRetryNs = 2'000'000;
constexpr Nanoseconds kPollNs = 5'000'000;
constexpr double kSegmentShare = 0.99;

// Moves the value of a Result to `to`, or returns its error.
template <typename To, typename From>
Status keep(To& to, Result<From> result) {
  if (!result.ok()) return result.status();
  to = result.take();
  return {};
}

slo::LogHeader header_of(const LendingConfig& config, const memory::PoolShape& pool) {
  slo::LogHeader header = config.targets;
  header.slabs = static_cast<std::uint32_t>(pool.slab_count);
  header.partitions = LendingDevice::kPartitions;
  header.blocks_per_slab = static_cast<std::uint32_t>(pool.slab_bytes / config.serving_block_bytes);
  header.block_tokens = config.block_tokens;
  header.max_request_tokens = static_cast<std::uint32_t>(config.next.largest_chunk.context_tokens);
  header.max_batch_tokens = static_cast<std::uint32_t>(config.next.largest_chunk.prefill_tokens);
  return header;
}

slo::DemandConfig demand_config(const slo::LogHeader& header) noexcept {
  return {.blocks_per_slab = header.blocks_per_slab,
          .block_tokens = header.block_tokens,
          .step_tokens = header.max_batch_tokens,
          .request_tokens = header.max_request_tokens,
          .burst_requests = header.burst_requests,
          .horizon_ms = header.revoke_ms,
          .memory_ms = kArrivalMemoryMs,
          .epsilon = header.epsilon,
          .window = kWindow};
}

}  // namespace

Result<std::unique_ptr<LendingDevice>> LendingDevice::create(memory::Pool pool,
                                                             LendingConfig config) {
  if (config.serving_block_bytes == 0) {
    return Status::invalid_argument("serving_block_bytes must be > 0, got 0");
  }
  std::unique_ptr<LendingDevice> device{new LendingDevice};
  ROSE_TRY(device->join(std::move(pool), config));
  return device;
}

Status LendingDevice::join(memory::Pool pool, const LendingConfig& config) {
  const memory::PoolShape shape = pool.shape();
  const slo::LogHeader header = header_of(config, shape);
  parts_.clock = std::make_shared<BootClock>();
  ROSE_TRY(keep(parts_.log, slo::CertificateLog::create(config.log_path, header, parts_.clock)));
  ROSE_TRY(keep(parts_.gate, compute::HostGate::create(parts_.clock)));
  parts_.state = std::make_shared<slo::ServingState>(
      parts_.log, std::make_shared<GateListener>(parts_.gate, header));
  ROSE_TRY(keep(parts_.model, slo::LatencyModel::create({.prior_ms = config.step_prior_ms,
                                                         .epsilon = header.epsilon,
                                                         .step_tokens = header.max_batch_tokens})));
  ROSE_TRY(keep(arbiter_, Arbiter::create(std::move(pool), parts_.clock,
                                          std::make_shared<MoveLog>(parts_.log))));
  const std::int32_t limit = shape.slab_count - config.reserve_slabs;
  ROSE_TRY(
      keep(serving_, arbiter_->add_partition("serving", config.reserve_slabs, shape.slab_count)));
  ROSE_TRY(keep(borrower_, arbiter_->add_partition("borrower", 0, limit)));
  ROSE_TRY(
      keep(serving_blocks_, arbiter_->add_allocator(serving_, {config.serving_block_bytes, 0, 0})));
  ROSE_TRY(keep(borrower_blocks_, arbiter_->add_allocator(borrower_, {config.borrower_block_bytes,
                                                                      shape.slab_bytes, 0})));
  ROSE_TRY(arbiter_->take(serving_, config.reserve_slabs).status());
  ROSE_TRY(
      keep(parts_.demand, slo::Demand::create(demand_config(header), parts_.model, parts_.clock)));
  parts_.supply = std::make_shared<SupplyWatch>(arbiter_, serving_, parts_.demand, parts_.state);
  const CertifiedCreditorConfig creditor{
      .next = config.next,
      .segments = {.prior_ms = config.segment_prior_ms, .share = kSegmentShare},
      .retry_ns = kRetryNs,
      .poll_ns = kPollNs};
  ROSE_TRY(keep(parts_.creditor, CertifiedCreditor::create(parts_.gate, parts_.state, parts_.model,
                                                           parts_.log, creditor, parts_.clock)));
  admission_ =
      std::make_unique<CertifiedAdmission>(serving_, parts_.demand, parts_.log, parts_.state);
  steps_ = std::make_unique<ServingSteps>(parts_);
  return {};
}

Status LendingDevice::start() noexcept {
  parts_.state->beat();
  steps_->set_lending(true);
  return parts_.creditor->start();
}

Status LendingDevice::close() noexcept {
  if (steps_ == nullptr) return {};  // create() failed
  end_lending();
  return parts_.log->close();
}

void LendingDevice::end_lending() noexcept {
  steps_->set_lending(false);
  parts_.creditor->stop();
  parts_.gate->shut_down();
}

SegmentWait LendingDevice::wait_parked() noexcept {
  // The segment that spent the budget may run for ever.
  if (parts_.gate->is_shut_down()) return {.has_ended = false};
  const SegmentWait wait = parts_.creditor->segments().wait(borrower_);
  if (wait.is_spent) end_lending();
  return wait;
}

Result<memory::GrantAnswer> LendingDevice::lend(std::int32_t slabs, Nanoseconds ttl_ns) noexcept {
  return arbiter_->grant(borrower_, slabs, ttl_ns, admission_.get());
}

Result<memory::RevocationProgress> LendingDevice::take_back(std::int32_t slabs,
                                                            Nanoseconds timeout_ns) noexcept {
  const Nanoseconds deadline_ns = parts_.clock->now_ns() + timeout_ns;
  parts_.log->append(slo::RevokeBegunRecord{
      .deadline_ns = deadline_ns, .slabs = static_cast<std::uint32_t>(slabs), .zero = 0});
  const auto revocation = arbiter_->revoke(borrower_, slabs, deadline_ns, serving_);
  if (!revocation.ok()) return revocation.status();
  return arbiter_->wait(revocation.value(), timeout_ns);
}

}  // namespace rose::coserving
