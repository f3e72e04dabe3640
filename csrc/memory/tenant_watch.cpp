#include "memory/tenant_watch.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/cgroup.h"
#include "base/futex.h"

namespace rose::memory {

namespace {

// Longest wait, in case a ring is lost; no such case is known.
constexpr Nanoseconds kLookAgainNs = 1'000'000'000;
// Shortest time between sweeps: a tenant that always rings must not keep the arbiter's mutex busy.
constexpr Nanoseconds kBetweenSweepsNs = 20'000;

}  // namespace

Result<std::unique_ptr<TenantWatch>> TenantWatch::create(std::shared_ptr<Arbiter> arbiter,
                                                         PartitionId partition, Process process,
                                                         bool kills_late) noexcept {
  Result<std::shared_ptr<TenantLine>> line = arbiter->line_of(partition);
  if (!line.ok()) return line.status();
  Result<EventFd> stop = EventFd::create();
  if (!stop.ok()) return stop.status();
  std::unique_ptr<TenantWatch> made{new TenantWatch{std::move(arbiter), partition, line.take(),
                                                    std::move(process), stop.take(), kills_late}};
  ROSE_TRY(made->thread_.start("the watch of a tenant", [raw = made.get()] { raw->run(); }));
  return made;
}

TenantWatch::TenantWatch(std::shared_ptr<Arbiter> arbiter, PartitionId partition,
                         std::shared_ptr<TenantLine> line, Process process, EventFd stop,
                         bool kills_late) noexcept
    : arbiter_{std::move(arbiter)},
      partition_{partition},
      line_{std::move(line)},
      process_{std::move(process)},
      stop_{std::move(stop)},
      kills_late_{kills_late} {}

TenantWatch::~TenantWatch() {
  if (owner_.is_here()) stop_.ring();
}

void TenantWatch::run() noexcept {
  enum : std::size_t { kStop, kProcess, kLate, kBell, kCount };
  std::array<pollfd, kCount> fds{};
  fds[kStop] = {stop_.get(), POLLIN, 0};
  fds[kProcess] = {process_.get(), POLLIN, 0};
  fds[kLate] = {line_->late.get(), POLLIN, 0};
  fds[kBell] = {line_->to_arbiter.get(), POLLIN, 0};
  bool has_swept = false;
  while (true) {
    for (pollfd& one : fds) one.revents = 0;
    const std::span watched{fds.data(), has_swept ? std::size_t{kBell} : std::size_t{kCount}};
    poll_for(watched, has_swept ? kBetweenSweepsNs : kLookAgainNs);
    has_swept = false;
    if (fds[kStop].revents != 0) return;
    if (fds[kProcess].revents != 0) {
      keep(arbiter_->lose_tenant(partition_).status());
      is_lost_.store(1);
      futex_wake_all(is_lost_);
      return;
    }
    if (fds[kLate].revents != 0) {
      line_->late.silence();
      if (kills_late_) {
        was_killed_.store(true);
        keep(kill_with_cgroup(process_));
      }
    }
    if (fds[kBell].revents != 0) {
      line_->to_arbiter.silence();  // before the sweep, so that a later ring causes a later sweep
      keep(arbiter_->sweep(partition_).status());
      has_swept = true;
    }
  }
}

bool TenantWatch::wait_lost(Nanoseconds timeout_ns) const noexcept {
  const BootClock real;
  const Nanoseconds end_ns = real.now_ns() + std::min(timeout_ns, kTimeoutMax);
  while (!is_lost()) {
    const Nanoseconds left_ns = end_ns - real.now_ns();
    if (left_ns <= 0) return false;
    futex_wait(is_lost_, 0, std::min(left_ns, kLookAgainNs));
  }
  return true;
}

void TenantWatch::keep(Status status) noexcept {
  const std::lock_guard lock{failures_};
  if (failure_.ok()) failure_ = std::move(status);
}

Status TenantWatch::failure() const noexcept {
  const std::lock_guard lock{failures_};
  return failure_;
}

}  // namespace rose::memory
