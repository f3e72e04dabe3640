// Whether serving can do without n slabs for as long as it takes to get them back.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "slo/certificate_log.h"
#include "slo/serving_state.h"

namespace rose::slo {

// Tokens per second; a faster engine than that is a mistake.
inline constexpr double kRateMax = 1e8;

// What is known when n slabs are asked for. Blocks are serving's blocks, whole ones.
struct AdmissionTerms {
  std::uint64_t epoch{0};  // of the arbiter, when the terms were read
  std::uint32_t to_partition{0};
  std::uint32_t slabs{0};  // n
  std::uint32_t blocks_per_slab{0};
  std::uint32_t block_tokens{0};
  std::uint32_t free_serving_blocks{0};  // free inside slabs that serving owns
  std::uint32_t unowned_slabs{0};        // before the grant
  std::uint32_t revocable_blocks{0};     // certain to be back within the horizon
  double horizon_ms{0};                  // T: how long a revocation takes at most
  std::uint32_t running_requests{0};
  double decode_tokens_per_s{0};          // of one request, at most
  double prefill_tokens_per_s{0};         // of the engine, at most
  std::uint32_t max_request_tokens{0};    // the largest prompt that is accepted
  std::uint32_t max_batch_tokens{0};      // what one step may prefill at once
  std::uint32_t burst_requests{0};        // that may arrive within T besides the largest one
  std::uint32_t burst_request_tokens{0};  // the prompt of one of these, at most
};

// free_serving + (unowned - n) * blocks_per_slab + revocable = supply >= demand.
struct AdmissionBalance {
  std::uint64_t growth_blocks{0};   // the running requests' next tokens
  std::uint64_t request_blocks{0};  // all prompts there is time for, as one, and its first tokens
  std::uint64_t burst_blocks{0};    // what it costs that they are several
  std::uint64_t demand_blocks{0};
  std::uint64_t supply_blocks{0};
  std::int64_t slack_blocks{0};  // supply - demand
};

// The terms must be finite and name a block and a slab size; n must not exceed unowned_slabs.
Status check(const AdmissionTerms& terms) noexcept;

// Pure. `terms` have passed check().
//
// Within T, with `b` tokens in a block:
//   A running request finishes at most g = 1 + floor(T * decode rate) tokens (one step may be about
//   to end); wherever they start, they need at most ceil(g / b) new blocks.
//   a = burst_requests arrive besides the largest one. They all share the engine, so of their
//   prompts and the largest's no more is stored than
//   P = min(largest prompt + a * their prompt, one step's batch + floor(T * prefill rate)) tokens.
//   Each of the 1 + a stores at most g tokens behind its prompt, and may leave a block begun: in
//   all no more than ceil((P + g) / b) + a * ceil((g + b - 1) / b) blocks, however P is split.
AdmissionBalance balance(const AdmissionTerms& terms) noexcept;

// The most slabs that may be granted with all else as in `terms`; `terms.slabs` is not looked at.
std::uint32_t largest_grant(const AdmissionTerms& terms) noexcept;

// Returns the certificate for granting `terms.slabs`, or nothing, which is a refusal. With a log it
// records the certificate first, and refuses if it cannot. With `serving` it first sets
// `terms.running_requests` to the pending requests and lowers `terms.slabs` to what they leave. All
// of it happens under the log's decision mutex, so that the log never shows an admission that
// forgot an arrival recorded before it.
Result<std::optional<AdmissionBalance>> admission_certificate(
    AdmissionTerms& terms, CertificateLog* log, const ServingState* serving = nullptr) noexcept;

}  // namespace rose::slo
