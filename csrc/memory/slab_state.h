// The states of a slab and their table of moves.
//
//   UNOWNED      owned by nobody; counted as free
//   OWNED        a partition's own, by take() or by return of a loan
//   GRANTED      lent to a partition under a lease
//   REVOKING     still the borrower's, but gives no new blocks; a deadline runs
//   QUIESCED     its last block was freed and its last pin dropped
//   RETURNED     its generation has advanced; it becomes UNOWNED, or OWNED by the taker
//   FENCED       the deadline passed (or the tenant is gone): nobody may use it
//   QUARANTINED  nobody may use it until a completion is proven; never counted as free
//
// A slab enters and leaves QUIESCED, RETURNED and FENCED within one call, under one lock, so nobody
// else sees these states. FENCED leads only to QUARANTINED, so a fenced lease never comes back.
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
