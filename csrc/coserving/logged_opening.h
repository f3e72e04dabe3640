// Records in the certificate log each segment that the watchdog lets through.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "compute/watchdog.h"
#include "slo/certificate_log.h"
#include "slo/serving_state.h"

namespace rose::coserving {

// The record comes before the opening, because Watchdog calls forced() first.
//
// Thread rule: as ForcedLog.
class LoggedOpening final : public compute::ForcedLog {
 public:
  explicit LoggedOpening(std::shared_ptr<slo::CertificateLog> log) noexcept;

  void forced(std::uint32_t passed, std::uint32_t close_epoch) noexcept override;

 private:
  std::shared_ptr<slo::CertificateLog> log_;
};

// Returns compute::ServingWork::progress of the requests in `state`. Any thread may call it.
std::function<std::uint64_t()> token_progress(std::shared_ptr<const slo::ServingState> state);

}  // namespace rose::coserving
