#include "coserving/move_log.h"

#include <cstdint>
#include <utility>

namespace rose::coserving {

MoveLog::MoveLog(std::shared_ptr<slo::CertificateLog> log) noexcept : log_{std::move(log)} {}

void MoveLog::on_move(const memory::Move& move) noexcept {
  static_cast<void>(log_->append_move(move.from_partition, move.to_partition,
                                      static_cast<std::uint32_t>(move.slabs), move.lease_id,
                                      move.epoch, static_cast<std::uint32_t>(move.kind)));
}

}  // namespace rose::coserving
