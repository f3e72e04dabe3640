// Whether serving can do without n slabs for as long as it takes to get them back.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "slo/certificate_log.h"

namespace rose::slo {

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
  double decode_tokens_per_s{0};        // of one request, at most
  double prefill_tokens_per_s{0};       // of the engine, at most
  std::uint32_t max_request_tokens{0};  // the largest prompt that is accepted
  std::uint32_t max_batch_tokens{0};    // what one step may prefill at once
  std::uint32_t burst_requests{0};      // that may arrive within T besides the largest one
  std::uint32_t burst_request_tokens{0};
};

// free_serving + (unowned - n) * blocks_per_slab + revocable = supply >= demand.
struct AdmissionBalance {
  std::uint64_t growth_blocks{0};   // the running requests' next tokens
  std::uint64_t request_blocks{0};  // the largest next request
  std::uint64_t burst_blocks{0};
  std::uint64_t demand_blocks{0};
  std::uint64_t supply_blocks{0};
  std::int64_t slack_blocks{0};  // supply - demand
};

// The terms must be finite and name a block and a slab size; n must not exceed unowned_slabs.
Status check(const AdmissionTerms& terms) noexcept;

// Pure. `terms` have passed check().
//
// Within T a request that runs finishes at most 1 + floor(T * rate) tokens (one step may be about
// to end), and new tokens g need at most ceil(g / block_tokens) new blocks wherever they start. A
// new request can have stored no more than one step's batch and what prefills within T.
AdmissionBalance balance(const AdmissionTerms& terms) noexcept;

// The most slabs that may be granted with all else as in `terms`; `terms.slabs` is not looked at.
std::uint32_t largest_grant(const AdmissionTerms& terms) noexcept;

// The certificate for granting `terms.slabs`, or nothing: a refusal. With a log the certificate is
// recorded before it is returned, and without a record there is none.
Result<std::optional<AdmissionBalance>> admission_certificate(const AdmissionTerms& terms,
                                                              CertificateLog* log) noexcept;

}  // namespace rose::slo
