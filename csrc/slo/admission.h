// Decides whether serving can spare n slabs for as long as a revocation takes.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "slo/certificate_log.h"
#include "slo/serving_state.h"

namespace rose::slo {

// Highest accepted rate in tokens per second; no engine is faster.
inline constexpr double kRateMax = 1e8;

// The state when a borrower requests n slabs. All numbers of blocks are whole blocks of serving.
struct AdmissionTerms {
  std::uint64_t epoch{0};  // epoch of the arbiter when the terms were read
  std::uint32_t to_partition{0};
  std::uint32_t slabs{0};  // n
  std::uint32_t blocks_per_slab{0};
  std::uint32_t block_tokens{0};
  std::uint32_t free_serving_blocks{0};  // free, in slabs that serving owns
  std::uint32_t unowned_slabs{0};        // before the grant
  std::uint32_t revocable_blocks{0};     // certain to return within the horizon
  double horizon_ms{0};                  // T: longest revocation
  std::uint32_t running_requests{0};
  double decode_tokens_per_s{0};          // highest rate of one request
  double prefill_tokens_per_s{0};         // highest rate of the engine
  std::uint32_t max_request_tokens{0};    // longest accepted prompt
  std::uint32_t max_batch_tokens{0};      // most prompt tokens of one step
  std::uint32_t burst_requests{0};        // further arrivals within T, besides the largest
  std::uint32_t burst_request_tokens{0};  // longest prompt of these further arrivals
};

// A grant needs supply >= demand, where the supply is
// free_serving + (unowned - n) * blocks_per_slab + revocable.
struct AdmissionBalance {
  std::uint64_t growth_blocks{0};   // for the next tokens of the running requests
  std::uint64_t request_blocks{0};  // for all new prompts as one request, with its first tokens
  std::uint64_t burst_blocks{0};    // extra cost because the new prompts are several requests
  std::uint64_t demand_blocks{0};
  std::uint64_t supply_blocks{0};
  std::int64_t slack_blocks{0};  // supply - demand
};

// InvalidArgument unless block_tokens and blocks_per_slab are > 0, and all terms are small enough
// that the sums cannot overflow. Ignores n: admission_certificate() refuses if n > unowned_slabs.
Status check(const AdmissionTerms& terms) noexcept;

// Computes supply and demand. Pure; requires check(terms).
//
// Within T, with b tokens in a block:
//   A running request gets at most g = 1 + floor(T * decode rate) tokens (a step may be about to
//   end). These tokens need at most ceil(g / b) new blocks, wherever in a block they start.
//   Besides the largest request, a = burst_requests further requests arrive. All of them share the
//   engine, so at most P = min(largest prompt + a * longest further prompt, one step's batch +
//   floor(T * prefill rate)) prompt tokens are stored.
//   Each of these 1 + a requests adds at most g tokens behind its prompt, and may leave a block
//   incomplete. However P is split among the requests, they need at most
//   ceil((P + g) / b) + a * ceil((g + b - 1) / b) blocks.
AdmissionBalance balance(const AdmissionTerms& terms) noexcept;

// Returns the largest number of slabs that the other terms allow; ignores `terms.slabs`.
std::uint32_t largest_grant(const AdmissionTerms& terms) noexcept;

// Returns the certificate for granting `terms.slabs`, or nothing for a refusal. With `serving`, the
// call first sets `terms.running_requests` to the number of pending requests and lowers
// `terms.slabs` to the largest grant. With `log`, the call records the certificate before it
// returns, and refuses if the recording fails. All of this happens under the log's decision mutex,
// so that each admission in the log counts every arrival recorded before it.
Result<std::optional<AdmissionBalance>> admission_certificate(
    AdmissionTerms& terms, CertificateLog* log, const ServingState* serving = nullptr) noexcept;

}  // namespace rose::slo
