// Records every change of ownership of slabs in the certificate log.
#pragma once

#include <memory>

#include "memory/arbiter.h"
#include "slo/certificate_log.h"

namespace rose::coserving {

// 1. The log has the moves in the order in which they happened, because the arbiter calls
//    on_move() under its mutex.
// 2. If a record is lost, the log is not healthy, and then no certificate is granted.
//
// Thread rule: as MoveObserver.
class MoveLog final : public memory::MoveObserver {
 public:
  explicit MoveLog(std::shared_ptr<slo::CertificateLog> log) noexcept;

  void on_move(const memory::Move& move) noexcept override;

 private:
  std::shared_ptr<slo::CertificateLog> log_;
};

}  // namespace rose::coserving
