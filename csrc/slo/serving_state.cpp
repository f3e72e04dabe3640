#include "slo/serving_state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace rose::slo {

ServingState::ServingState(std::shared_ptr<CertificateLog> log,
                           std::shared_ptr<ServingListener> listener)
    : log_{std::move(log)},
      listener_{std::move(listener)},
      requests_{std::make_unique<std::array<Request, kSlots + 1>>()},
      token_times_{std::make_unique<TokenTimes>()} {
  (*requests_)[kSlots].before = (*requests_)[kSlots].after = kSlots;
}

std::uint32_t ServingState::arrived(std::uint64_t tokens, bool is_prefilled) noexcept {
  pending_.fetch_add(1);
  waiting_.fetch_add(1);
  if (is_prefilled) has_prefilled_.store(true);
  if (listener_ != nullptr) listener_->busy();
  CertificateLog::Section section{*log_};
  const std::uint32_t slot = take_slot();
  if (slot != kNoSlot) {
    Request& request = (*requests_)[slot];
    request.context_tokens = tokens;
    request.last_token_ns = section.now_ns();
    request.phase = Phase::kWaiting;
  } else {
    ++slotless_;
  }
  section.append(
      ArrivedRecord{.tokens = tokens, .slot = slot, .prefilled = is_prefilled ? 1U : 0U});
  if (is_prefilled && slot != kNoSlot) give_token(slot, section);
  return slot;
}

std::uint32_t ServingState::emitted(std::span<const std::uint32_t> slots, bool is_late) noexcept {
  CertificateLog::Section section{*log_};
  record_tokens(section, slots);
  std::uint32_t counted = 0;
  for (const std::uint32_t slot : slots) {
    if (!is_live(slot)) continue;
    const Request& request = (*requests_)[slot];
    const bool is_first = request.phase == Phase::kWaiting;
    Histogram& times = is_first ? token_times_->first : token_times_->later;
    if (is_first || !is_late) times.record(section.now_ns() - request.last_token_ns);
    give_token(slot, section);
    ++(*requests_)[slot].context_tokens;
    ++context_tokens_;
    ++counted;
  }
  return counted;
}

bool ServingState::finished(std::uint32_t slot) noexcept {
  {
    CertificateLog::Section section{*log_};
    const bool has_no_slot = slot == kNoSlot && slotless_ > 0;
    if (!has_no_slot && !is_live(slot)) return false;
    section.append(FinishedRecord{.slot = slot, .zero = 0});
    if (has_no_slot) {
      --slotless_;
      waiting_.fetch_sub(1);
    } else {
      Request& request = (*requests_)[slot];
      if (request.phase == Phase::kRunning) {
        unlink(slot);
      } else {
        waiting_.fetch_sub(1);
      }
      request.phase = Phase::kFree;
      taken_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
    }
  }
  if (pending_.fetch_sub(1) == 1 && listener_ != nullptr) listener_->idle();
  return true;
}

bool ServingState::step_ended() noexcept {
  if (steps_.load() <= 0) return false;
  if (steps_.fetch_sub(1) == 1 && pending() == 0 && listener_ != nullptr) listener_->idle();
  return true;
}

bool ServingState::runs_within(std::span<const std::uint32_t> slots,
                               const CertificateLog::Section& /*held*/) const noexcept {
  std::array<std::uint64_t, kWords> seen{};
  std::uint32_t found = 0;
  for (const std::uint32_t slot : slots) {
    if (slot >= kSlots || (*requests_)[slot].phase != Phase::kRunning) continue;
    const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
    if ((seen[slot / 64] & bit) == 0) ++found;
    seen[slot / 64] |= bit;
  }
  return found == running_;
}

Nanoseconds ServingState::heartbeat_age_ns(Nanoseconds now_ns) const noexcept {
  const Nanoseconds heartbeat_ns = heartbeat_ns_.load();
  if (heartbeat_ns == kNever) return std::numeric_limits<Nanoseconds>::max();
  return std::max<Nanoseconds>(now_ns - heartbeat_ns, 0);
}

ServingLoad ServingState::load() const noexcept { return load(CertificateLog::Section{*log_}); }

ServingLoad ServingState::load(const CertificateLog::Section& /*held*/) const noexcept {
  const std::uint32_t oldest = (*requests_)[kSlots].after;
  return {.running = running_,
          .context_tokens = context_tokens_,
          .oldest_token_ns = oldest == kSlots ? 0 : (*requests_)[oldest].last_token_ns};
}

double ServingState::budget_ms(const CertificateLog::Section& section) const noexcept {
  if (std::isinf(log_->header().slowdown)) return std::numeric_limits<double>::infinity();
  if (running_ == 0) return 0;
  double most_ms = -std::numeric_limits<double>::infinity();
  for (std::uint32_t slot = (*requests_)[kSlots].after; slot != kSlots;
       slot = (*requests_)[slot].after) {
    most_ms = std::max(most_ms, (*requests_)[slot].balance_ms);
  }
  return section.balance_ms() - most_ms - section.promised_ms();
}

std::uint32_t ServingState::take_slot() noexcept {
  for (std::uint32_t word = 0; word < kWords; ++word) {
    if (taken_[word] == ~std::uint64_t{0}) continue;
    const auto bit = static_cast<std::uint32_t>(std::countr_one(taken_[word]));
    taken_[word] |= std::uint64_t{1} << bit;
    return word * 64 + bit;
  }
  return kNoSlot;
}

bool ServingState::is_live(std::uint32_t slot) const noexcept {
  return slot < kSlots && (*requests_)[slot].phase != Phase::kFree;
}

// Times of sections never decrease, so the newest token goes to the end of the ring.
void ServingState::give_token(std::uint32_t slot, const CertificateLog::Section& section) noexcept {
  Request& request = (*requests_)[slot];
  if (request.phase == Phase::kRunning) {
    unlink(slot);
  } else {
    waiting_.fetch_sub(1);
    request.phase = Phase::kRunning;
    request.balance_ms = section.balance_ms();
  }
  link_newest(slot, section.now_ns());
}

void ServingState::link_newest(std::uint32_t slot, Nanoseconds now_ns) noexcept {
  Request& anchor = (*requests_)[kSlots];
  Request& request = (*requests_)[slot];
  request.last_token_ns = now_ns;
  request.before = anchor.before;
  request.after = kSlots;
  (*requests_)[anchor.before].after = slot;
  anchor.before = slot;
  ++running_;
  context_tokens_ += request.context_tokens;
}

void ServingState::unlink(std::uint32_t slot) noexcept {
  const Request& request = (*requests_)[slot];
  (*requests_)[request.before].after = request.after;
  (*requests_)[request.after].before = request.before;
  --running_;
  context_tokens_ -= request.context_tokens;
}

// Appends one record per range of slots that fits a bitmap. Requests take the lowest free slots, so
// there is usually a single record.
void ServingState::record_tokens(CertificateLog::Section& section,
                                 std::span<const std::uint32_t> slots) noexcept {
  constexpr std::uint32_t kBits = TokensRecord::kBitmapBytes * 8;
  for (std::uint32_t first = 0; first < kSlots; first += kBits) {
    TokensRecord record{.first_slot = first, .count = 0, .bitmap = {}};
    for (const std::uint32_t slot : slots) {
      if (!is_live(slot) || slot < first || slot - first >= kBits) continue;
      std::uint8_t& byte = record.bitmap[(slot - first) / 8];
      const auto bit = static_cast<std::uint8_t>(1U << ((slot - first) % 8));
      if ((byte & bit) == 0) ++record.count;
      byte |= bit;
    }
    if (record.count > 0) section.append(record);
    if (std::ranges::all_of(slots, [&](std::uint32_t slot) { return slot < first + kBits; }))
      return;
  }
}

}  // namespace rose::slo
