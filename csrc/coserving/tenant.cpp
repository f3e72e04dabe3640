#include "coserving/tenant.h"

#include <utility>

namespace rose::coserving {

using memory::Arbiter;
using memory::TenantWatch;

Result<std::unique_ptr<Tenant>> Tenant::create(std::shared_ptr<Arbiter> arbiter,
                                               memory::PartitionId partition,
                                               const Process& process, memory::Notify notify_at,
                                               bool kills_late) {
  ROSE_TRY(arbiter->add_tenant(partition, notify_at).status());
  Result<Process> copy = process.duplicate();
  if (!copy.ok()) return copy.status();
  Result<std::unique_ptr<TenantWatch>> watch =
      TenantWatch::create(arbiter, partition, copy.take(), kills_late);
  if (!watch.ok()) return watch.status();
  return std::unique_ptr<Tenant>{new Tenant{std::move(arbiter), watch.take()}};
}

Tenant::Tenant(std::shared_ptr<Arbiter> arbiter, std::unique_ptr<TenantWatch> watch) noexcept
    : arbiter_{std::move(arbiter)}, watch_{std::move(watch)} {}

std::shared_ptr<const TenantWatch> Tenant::watch() const noexcept {
  const std::scoped_lock lock{mutex_};
  return watch_;
}

void Tenant::close() noexcept {
  std::shared_ptr<const TenantWatch> ending;  // destroyed, and its thread joined, without the lock
  const std::scoped_lock lock{mutex_};
  ending.swap(watch_);
}

void Tenant::ring() const noexcept {
  if (const auto watching = watch()) watching->line().to_tenant.ring();
}

void Tenant::evict() const noexcept {
  if (const auto watching = watch()) watching->line().late.ring();
}

bool Tenant::is_alive() const noexcept {
  const auto watching = watch();
  return watching != nullptr && watching->process().is_alive();
}

memory::TenantReport Tenant::report() const noexcept {
  const auto watching = watch();
  return watching == nullptr ? memory::TenantReport{} : watching->line().mailbox.report();
}

}  // namespace rose::coserving
