#include "scheduler/fairness.h"

namespace rose::scheduler {

void Fairness::refresh(const JobTable& jobs, WorkerTable& workers) {
  for (const auto& [device, slots] : workers.devices()) refresh(jobs, workers, device);
}

void Fairness::refresh(const JobTable& jobs, WorkerTable& workers, DeviceId number) {
  const auto found = workers.devices().find(number);
  if (found == workers.devices().end()) return;
  // A job may have several workers here. It is backlogged if one of them could run its turns.
  std::map<std::size_t, bool> waits;
  for (const std::size_t slot : found->second) {
    bool& is_waiting = waits[workers[slot].job];
    is_waiting = is_waiting || is_backlogged(jobs[workers[slot].job], workers, slot);
  }
  FairDevice& device = devices_[number];
  device.set_backlogged(waits);
  for (const std::size_t slot : found->second) {
    workers.set_barred(slot, device.is_barred(workers[slot].job, lead_tokens_));
  }
}

void Fairness::serve(const JobTable& jobs, const Worker& worker, std::int64_t tokens) {
  if (worker.device == kOwnDevice) return;
  devices_[worker.device].serve(worker.job, static_cast<double>(tokens) / jobs[worker.job].weight);
}

bool Fairness::is_backlogged(const Job& job, const WorkerTable& workers,
                             std::size_t slot) const noexcept {
  const Worker& worker = workers[slot];
  return worker.grant.is_live && !worker.is_held_off && !job.wants.empty() &&
         job.wants.begin()->first <= workers.share(slot).kv_tokens &&
         worker.version >= job.published - lag_max_ &&
         worker.version >= job.oldest_version(job.places.begin()->first);
}

}  // namespace rose::scheduler
