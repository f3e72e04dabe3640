#include "coserving/logged_opening.h"

#include <utility>

namespace rose::coserving {

LoggedOpening::LoggedOpening(std::shared_ptr<slo::CertificateLog> log) noexcept
    : log_{std::move(log)} {}

void LoggedOpening::forced(std::uint32_t passed, std::uint32_t close_epoch) noexcept {
  log_->append(slo::ForcedRecord{.passed = passed, .close_epoch = close_epoch});
}

std::function<std::uint64_t()> token_progress(std::shared_ptr<const slo::ServingState> state) {
  return [state = std::move(state)] {
    const slo::TokenTimes& times = state->token_times();
    if (state->pending() == 0) return std::uint64_t{0};
    return 1 + times.first.quantiles().count + times.later.quantiles().count;
  };
}

}  // namespace rose::coserving
