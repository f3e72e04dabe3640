#include "slo/admission.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/ceil_div.h"

namespace rose::slo {

namespace {

// Longest accepted horizon. Within this and kRateMax, every sum is less than 2^62.
constexpr double kHorizonMaxMs = 1e7;
constexpr std::uint32_t kRequestsMax = 1'000'000;
// More slabs than any machine has; products of two such counts stay far below 2^63.
constexpr std::uint32_t kSlabsMax = 1U << 24;

bool is_within(double value, double max) noexcept {
  return std::isfinite(value) && value >= 0 && value <= max;
}

std::uint64_t tokens_within(double horizon_ms, double tokens_per_s) noexcept {
  return static_cast<std::uint64_t>(std::floor(horizon_ms * tokens_per_s / 1000.0));
}

// Supply without the unowned slabs, minus demand.
std::int64_t slack_before_unowned(const AdmissionTerms& terms,
                                  std::uint64_t demand_blocks) noexcept {
  return static_cast<std::int64_t>(terms.free_serving_blocks) +
         static_cast<std::int64_t>(terms.revocable_blocks) -
         static_cast<std::int64_t>(demand_blocks);
}

}  // namespace

Status check(const AdmissionTerms& terms) noexcept {
  if (terms.block_tokens == 0 || terms.blocks_per_slab == 0) {
    return Status::invalid_argument("block_tokens and blocks_per_slab must be > 0, got " +
                                    std::to_string(terms.block_tokens) + " and " +
                                    std::to_string(terms.blocks_per_slab));
  }
  if (!is_within(terms.horizon_ms, kHorizonMaxMs)) {
    return Status::invalid_argument("horizon_ms must lie in 0..1e7, got " +
                                    text_of(terms.horizon_ms));
  }
  if (!is_within(terms.decode_tokens_per_s, kRateMax) ||
      !is_within(terms.prefill_tokens_per_s, kRateMax)) {
    return Status::invalid_argument(
        "decode_tokens_per_s and prefill_tokens_per_s must lie in 0..1e8, got " +
        text_of(terms.decode_tokens_per_s) + " and " + text_of(terms.prefill_tokens_per_s));
  }
  if (terms.unowned_slabs > kSlabsMax || terms.blocks_per_slab > kSlabsMax) {
    return Status::invalid_argument("unowned_slabs and blocks_per_slab must be <= 16777216, got " +
                                    std::to_string(terms.unowned_slabs) + " and " +
                                    std::to_string(terms.blocks_per_slab));
  }
  if (terms.running_requests > kRequestsMax || terms.burst_requests > kRequestsMax) {
    return Status::invalid_argument("running_requests and burst_requests must be <= 1000000, got " +
                                    std::to_string(terms.running_requests) + " and " +
                                    std::to_string(terms.burst_requests));
  }
  return {};
}

AdmissionBalance balance(const AdmissionTerms& terms) noexcept {
  const std::uint64_t block = terms.block_tokens;
  const std::uint64_t first = 1 + tokens_within(terms.horizon_ms, terms.decode_tokens_per_s);
  const std::uint64_t further = terms.burst_requests;
  const std::uint64_t prompts = std::min<std::uint64_t>(
      terms.max_request_tokens + further * terms.burst_request_tokens,
      terms.max_batch_tokens + tokens_within(terms.horizon_ms, terms.prefill_tokens_per_s));
  AdmissionBalance out;
  out.growth_blocks = terms.running_requests * ceil_div(first, block);
  out.request_blocks = ceil_div(prompts + first, block);
  out.burst_blocks = further * ceil_div(first + block - 1, block);
  out.demand_blocks = out.growth_blocks + out.request_blocks + out.burst_blocks;
  const std::uint64_t left_slabs =
      terms.slabs <= terms.unowned_slabs ? terms.unowned_slabs - terms.slabs : 0;
  const std::uint64_t left_blocks = left_slabs * terms.blocks_per_slab;
  out.supply_blocks = terms.free_serving_blocks + left_blocks + terms.revocable_blocks;
  out.slack_blocks =
      slack_before_unowned(terms, out.demand_blocks) + static_cast<std::int64_t>(left_blocks);
  return out;
}

std::uint32_t largest_grant(const AdmissionTerms& terms) noexcept {
  const std::int64_t needed = -slack_before_unowned(terms, balance(terms).demand_blocks);
  if (needed <= 0) return terms.unowned_slabs;
  const std::uint64_t kept = ceil_div(static_cast<std::uint64_t>(needed), terms.blocks_per_slab);
  return kept >= terms.unowned_slabs ? 0 : terms.unowned_slabs - static_cast<std::uint32_t>(kept);
}

Result<std::optional<AdmissionBalance>> admission_certificate(
    AdmissionTerms& terms, CertificateLog* log, const ServingState* serving) noexcept {
  std::optional<CertificateLog::Section> section;
  if (log != nullptr) section.emplace(*log);
  if (serving != nullptr) {
    terms.running_requests = static_cast<std::uint32_t>(serving->pending());
    terms.slabs = std::min(terms.slabs, terms.unowned_slabs);
  }
  ROSE_TRY(check(terms));
  AdmissionBalance sums = balance(terms);
  if (serving != nullptr && sums.slack_blocks < 0) {
    terms.slabs = std::min(terms.slabs, largest_grant(terms));
    sums = balance(terms);
  }
  if (terms.slabs == 0 || terms.slabs > terms.unowned_slabs || sums.slack_blocks < 0 ||
      sums.demand_blocks > std::numeric_limits<std::uint32_t>::max()) {
    return std::optional<AdmissionBalance>{};
  }
  const AdmissionRecord record{
      .epoch = terms.epoch,
      .horizon_ms = terms.horizon_ms,
      .decode_tokens_per_s = terms.decode_tokens_per_s,
      .prefill_tokens_per_s = terms.prefill_tokens_per_s,
      .slack_blocks = sums.slack_blocks,
      .slabs = terms.slabs,
      .block_tokens = terms.block_tokens,
      .free_serving_blocks = terms.free_serving_blocks,
      .unowned_slabs = terms.unowned_slabs,
      .revocable_blocks = terms.revocable_blocks,
      .running_requests = terms.running_requests,
      .max_request_tokens = terms.max_request_tokens,
      .max_batch_tokens = terms.max_batch_tokens,
      .burst_requests = terms.burst_requests,
      .burst_request_tokens = terms.burst_request_tokens,
      .demand_blocks = static_cast<std::uint32_t>(sums.demand_blocks),
      .to_partition = terms.to_partition,
  };
  if (section && !section->append(record)) return std::optional<AdmissionBalance>{};
  return std::optional<AdmissionBalance>{sums};
}

}  // namespace rose::slo
