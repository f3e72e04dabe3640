// Where memory and slo meet: every change of ownership goes into the certificate log.
#include <pybind11/pybind11.h>

#include <memory>

#include "memory/arbiter.h"
#include "slo/certificate_log.h"

namespace rose::bind {

namespace py = pybind11;
using memory::Move;

namespace {

// Called under the arbiter's mutex, so the log has the moves in their true order.
class MoveLog final : public memory::MoveObserver {
 public:
  explicit MoveLog(std::shared_ptr<slo::CertificateLog> log) noexcept : log_{std::move(log)} {}

  void on_move(const Move& move) noexcept override {
    // A record that is lost makes the log unhealthy, and then nothing is granted any more.
    static_cast<void>(log_->append_move(move.from_partition, move.to_partition,
                                        static_cast<std::uint32_t>(move.slabs), move.lease_id,
                                        move.epoch, static_cast<std::uint32_t>(move.kind)));
  }

 private:
  std::shared_ptr<slo::CertificateLog> log_;
};

}  // namespace

void bind_moves(py::module_& module) {
  py::class_<MoveLog, memory::MoveObserver, std::shared_ptr<MoveLog>>(module, "MoveLog")
      .def(py::init<std::shared_ptr<slo::CertificateLog>>(), py::arg("log").none(false));
}

}  // namespace rose::bind
