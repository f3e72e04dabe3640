// The life of a slab, as a table of moves.
//
//   UNOWNED      nobody's; counted as free
//   OWNED        a partition's own, by take() or because a loan came home to it
//   GRANTED      lent to a partition under a lease
//   REVOKING     still the borrower's, but it gives no new blocks; a deadline runs
//   QUIESCED     its last block was freed and its last pin dropped
//   RETURNED     its generation has moved on; it becomes UNOWNED, or OWNED by who took it back
//   FENCED       the deadline passed (or the tenant is gone): nobody's to use any more
//   QUARANTINED  bytes that nobody may use until a completion is proven; never counted as free
//
// QUIESCED, RETURNED and FENCED are passed through inside one call, under one lock, and are never
// seen at rest. FENCED leads to QUARANTINED only, so a lease that was fenced never comes back.
#pragma once

#include <cstdint>

namespace rose::memory {

enum class SlabState : std::uint32_t {
  kUnowned = 0,
  kOwned,
  kGranted,
  kRevoking,
  kQuiesced,
  kReturned,
  kFenced,
  kQuarantined,
};

constexpr bool is_move(SlabState from, SlabState to) noexcept {
  using enum SlabState;
  switch (from) {
    case kUnowned:
      return to == kOwned || to == kGranted;
    case kOwned:
      return to == kReturned || to == kFenced;
    case kGranted:
      return to == kRevoking;
    case kRevoking:
      return to == kQuiesced || to == kFenced;
    case kQuiesced:
      return to == kReturned;
    case kReturned:
      return to == kUnowned || to == kOwned;
    case kFenced:
      return to == kQuarantined;
    case kQuarantined:
      return to == kReturned;
  }
  return false;
}

constexpr bool is_at_rest(SlabState state) noexcept {
  using enum SlabState;
  return state == kUnowned || state == kOwned || state == kGranted || state == kRevoking ||
         state == kQuarantined;
}

// States in which the slab counts as held by its owner.
constexpr bool is_held(SlabState state) noexcept {
  using enum SlabState;
  return state == kOwned || state == kGranted || state == kRevoking;
}

}  // namespace rose::memory
