#include "compute/host_gate.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/futex.h"

namespace rose::compute {

namespace {

constexpr std::uint64_t kOneEpoch = std::uint64_t{1} << GateWord::kEpochShift;
// Only a few parties use a gate, and each may change the gate's state once during a close. So after
// this many failed attempts a party must be broken.
constexpr int kCloseTries = 16;
// Longest time between two looks on a busy machine. If more time has passed, this process itself
// was stopped, so the excess does not count towards the time-out.
constexpr Nanoseconds kLookMaxNs = 5 * HostGate::kLookAgainNs;

struct NewPage {
  FileDescriptor fd;
  Mapping mapping;
  GateWord* word{nullptr};
};

Result<NewPage> create_page(std::uint32_t first_segment) {
  auto fd = create_memfd("rose-gate", sizeof(GatePage));
  if (!fd.ok()) return fd.status();
  auto mapping = Mapping::create(fd.value(), sizeof(GatePage), Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  GateWord* word = &(new (mapping.value().data()) GatePage{})->word;
  word->credit.store(first_segment);
  word->passed.store(first_segment);
  word->magic.store(GateWord::kMagic);
  return NewPage{fd.take(), mapping.take(), word};
}

}  // namespace

HostGate::HostGate(FileDescriptor fd, Mapping mapping, std::shared_ptr<const Clock> clock) noexcept
    : fd_{std::move(fd)},
      mapping_{std::move(mapping)},
      page_{std::launder(reinterpret_cast<GatePage*>(mapping_.data()))},
      word_{&page_->word},
      clock_{std::move(clock)} {}

Result<std::unique_ptr<HostGate>> HostGate::create(std::shared_ptr<const Clock> clock,
                                                   std::uint32_t first_segment) {
  auto page = create_page(first_segment);
  if (!page.ok()) return page.status();
  NewPage made = page.take();
  return std::unique_ptr<HostGate>{
      new HostGate{std::move(made.fd), std::move(made.mapping), std::move(clock)}};
}

Result<std::unique_ptr<HostGate>> HostGate::attach(const FileDescriptor& fd,
                                                   std::shared_ptr<const Clock> clock) {
  struct stat file{};
  if (::fstat(fd.get(), &file) != 0) return from_errno("fstat of the gate", errno);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  // Without the seal the other party could shrink the file under our mapping.
  if (file.st_size != sizeof(GatePage) || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status::invalid_argument("the descriptor is not a gate of rose: it must be a memfd of " +
                                    std::to_string(sizeof(GatePage)) + " bytes with F_SEAL_SHRINK");
  }
  auto copy = fd.duplicate();
  if (!copy.ok()) return copy.status();
  auto mapping = Mapping::create(copy.value(), sizeof(GatePage), Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  std::unique_ptr<HostGate> gate{new HostGate{copy.take(), mapping.take(), std::move(clock)}};
  if (gate->word_->magic.load() != GateWord::kMagic) {
    return Status::invalid_argument(
        "the descriptor is not a gate of rose: its magic number is wrong");
  }
  return gate;
}

void HostGate::begin_step() noexcept {
  word_->step.store(GateWord::kInStep);
  if (!is_open() || wants_credit()) ring_demand();
}

void HostGate::end_step() noexcept {
  leave();
  page_->mid_step.store(0);
  word_->step.store(GateWord::kNoStep);
}

void HostGate::leave() noexcept { end_segment(); }

std::optional<Verdict> HostGate::try_pass() noexcept {
  end_segment();
  return look();
}

Verdict HostGate::pass(Nanoseconds timeout_ns) noexcept {
  if (const auto verdict = try_pass()) return *verdict;
  count_pause();
  const Nanoseconds from_ns = real_now_ns();
  Verdict verdict = Verdict::kTimedOut;
  for (Nanoseconds left_ns = timeout_ns; left_ns > 0;
       left_ns = timeout_ns - (real_now_ns() - from_ns)) {
    // Read the bell before the look, so that a change after the look makes the futex return.
    const std::uint32_t seen = word_->bell.load();
    if (const auto found = look()) {
      verdict = *found;
      break;
    }
    ring_demand();
    futex_wait(word_->bell, seen, std::min(left_ns, kLookAgainNs));
  }
  record_wait(real_now_ns() - from_ns);
  return verdict;
}

void HostGate::count_pause() noexcept {
  if (is_open() || paused_after_ == passed()) return;
  paused_after_ = passed();
  page_->pause_count.fetch_add(1, std::memory_order_relaxed);
}

void HostGate::record_wait(Nanoseconds blocked_ns) noexcept {
  page_->blocked_ns.fetch_add(blocked_ns, std::memory_order_relaxed);
}

// Returns the verdict, to stop or to go, if it is known without a wait; otherwise nothing.
std::optional<Verdict> HostGate::look() noexcept {
  if (is_shut_down()) return Verdict::kShutDown;
  if (take_abort()) return Verdict::kAborted;
  if (may_start() && start_segment()) return Verdict::kPassed;
  return std::nullopt;
}

bool HostGate::take_abort() noexcept {
  std::uint32_t asked = GateWord::kAbortAsked;
  if (!word_->step.compare_exchange_strong(asked, GateWord::kInStep)) return false;
  page_->abort_count.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool HostGate::may_start() const noexcept { return is_open() && credit_left() != 0; }

bool HostGate::start_segment() noexcept {
  word_->running.store(GateWord::kRuns);
  started_ns_ = clock_->now_ns();
  // Invariant 1: from here on, either this thread sees a close, or its caller sees `running`.
  if (!may_start()) {
    if (word_->running.exchange(GateWord::kIdle) == GateWord::kRunsWithWaiter) {
      futex_wake_all(word_->running);
    }
    return false;
  }
  in_segment_ = true;
  mark_mid_step();
  word_->passed.fetch_add(1);
  if (wants_credit()) ring_demand();
  return true;
}

void HostGate::end_segment() noexcept {
  if (!in_segment_) return;
  in_segment_ = false;
  if (word_->running.exchange(GateWord::kIdle) == GateWord::kRunsWithWaiter) {
    futex_wake_all(word_->running);
  }
  const Nanoseconds now_ns = clock_->now_ns();
  record_segment_ended(now_ns - started_ns_, now_ns);
  const Nanoseconds closed_at_ns = word_->closed_at_ns.load();
  if (!is_open() && closed_at_ns >= started_ns_) page_->pauses.record(now_ns - closed_at_ns);
}

void HostGate::record_segment(Nanoseconds duration_ns) noexcept {
  record_segment_ended(duration_ns, clock_->now_ns());
}

void HostGate::record_segment_ended(Nanoseconds duration_ns, Nanoseconds ended_ns) noexcept {
  page_->segments.record(duration_ns);
  page_->recent.record(duration_ns, ended_ns);
}

void HostGate::drain_to(std::uint32_t last) noexcept {
  word_->state.fetch_or(GateWord::kDrainBit);
  std::uint32_t credit = word_->credit.load();
  while (static_cast<std::int32_t>(last - credit) > 0 &&
         !word_->credit.compare_exchange_weak(credit, last)) {
  }
}

void HostGate::end_drain() noexcept { word_->state.fetch_and(~GateWord::kDrainBit); }

void HostGate::close(CloseReason reason) noexcept {
  std::uint64_t state = word_->state.load();
  if ((state & GateWord::kOpenBit) != 0) word_->closed_at_ns.store(clock_->now_ns());
  const auto closed = [&] { return (state & ~GateWord::kOpenBit) + kOneEpoch; };
  for (int tries = 0; !word_->state.compare_exchange_weak(state, closed()); ++tries) {
    if (tries < kCloseTries) continue;
    // A broken borrower may write `state` all the time, so the close overwrites whatever is there.
    word_->state.store(closed());
    break;
  }
  word_->close_reason.store(static_cast<std::uint32_t>(reason));
}

void HostGate::expect_arrival(Nanoseconds within_ns) noexcept {
  // Before the close: a policy that does not see the time yet decides for an older close epoch.
  page_->expected_until_ns.store(clock_->now_ns() + std::min(within_ns, kExpectMaxNs));
  close(CloseReason::kArrival);
}

bool HostGate::expects_arrival() const noexcept {
  const Nanoseconds until_ns = page_->expected_until_ns.load();
  if (until_ns == 0) return false;  // the usual case, without a look at the clock
  const Nanoseconds now_ns = clock_->now_ns();
  // The limit holds whatever another process writes.
  return until_ns > now_ns && until_ns <= now_ns + kExpectMaxNs;
}

std::optional<Nanoseconds> HostGate::wait_parked(Nanoseconds timeout_ns) noexcept {
  if (!is_running()) return 0;
  const Nanoseconds from_ns = real_now_ns();
  Nanoseconds looked_ns = from_ns;
  for (Nanoseconds left_ns = timeout_ns;;) {
    std::uint32_t seen = GateWord::kRuns;
    word_->running.compare_exchange_strong(seen, GateWord::kRunsWithWaiter);
    const Nanoseconds now_ns = real_now_ns();
    if (seen == GateWord::kIdle) return now_ns - from_ns;
    left_ns -= std::min(now_ns - looked_ns, kLookMaxNs);
    if (left_ns <= 0) return std::nullopt;
    looked_ns = now_ns;
    futex_wait(word_->running, GateWord::kRunsWithWaiter, std::min(left_ns, kLookAgainNs));
  }
}

Status HostGate::renew() {
  // The lock ensures that no thread opens the new page because of values read from the old page.
  const std::scoped_lock one_decides{granting_};
  auto page = create_page(passed());
  if (!page.ok()) return page.status();
  NewPage made = page.take();
  made.word->state.store((std::uint64_t{close_epoch()} + 1) << GateWord::kEpochShift);
  made.word->close_reason.store(static_cast<std::uint32_t>(CloseReason::kBorrowerGone));
  made.word->low_water.store(word_->low_water.load());
  made.word->shut_down.store(is_abandoned_.load() ? 1 : 0);
  word_->running.store(GateWord::kIdle);
  futex_wake_all(word_->running);
  ROSE_TRY(mapping_.replace(made.fd));
  fd_ = std::move(made.fd);
  return {};
}

bool HostGate::abort_step() noexcept {
  std::uint32_t step = GateWord::kInStep;
  const bool asked = word_->step.compare_exchange_strong(step, GateWord::kAbortAsked);
  if (asked) ring_bell();
  return asked || step == GateWord::kAbortAsked;
}

bool HostGate::open(std::uint32_t expected_epoch) noexcept {
  if (is_shut_down()) return false;
  std::uint64_t closed = std::uint64_t{expected_epoch} << GateWord::kEpochShift;
  const bool opened = word_->state.compare_exchange_strong(closed, closed | GateWord::kOpenBit);
  if (opened) ring_bell();
  return opened ||
         closed == ((std::uint64_t{expected_epoch} << GateWord::kEpochShift) | GateWord::kOpenBit);
}

bool HostGate::set_credit(std::uint32_t last) noexcept {
  const bool raises = static_cast<std::int32_t>(last - word_->credit.load()) > 0;
  if (!raises && (is_open() || is_draining())) return !is_draining();
  word_->credit.store(last);
  ring_bell();
  return true;
}

void HostGate::grant(std::uint32_t segments_ahead) noexcept {
  if (segments_ahead > credit_left()) set_credit(passed() + segments_ahead);
}

void HostGate::set_low_water(std::uint32_t segments) noexcept { word_->low_water.store(segments); }

void HostGate::count_forced_opening() noexcept {
  page_->forced_count.fetch_add(1, std::memory_order_relaxed);
}

void HostGate::ring_demand() noexcept {
  word_->demand.fetch_add(1);
  futex_wake_all(word_->demand);
}

void HostGate::wait_bell(std::uint32_t seen, Nanoseconds timeout_ns) const noexcept {
  futex_wait(word_->bell, seen, timeout_ns);
}

void HostGate::wait_demand(std::uint32_t seen, Nanoseconds timeout_ns) const noexcept {
  futex_wait(word_->demand, seen, timeout_ns);
}

void HostGate::shut_down() noexcept {
  is_abandoned_.store(true);
  word_->shut_down.store(1);
  close(CloseReason::kShutDown);
  ring_bell();
  ring_demand();
}

void HostGate::abandon() noexcept {
  is_abandoned_.store(true);
  ring_bell();
}

void HostGate::ring_bell() noexcept {
  word_->bell.fetch_add(1);
  futex_wake_all(word_->bell);
}

GateStats HostGate::stats() const noexcept {
  return {.segments = page_->segments.quantiles(),
          .pause_latency = page_->pauses.quantiles(),
          .pauses = page_->pause_count.load(std::memory_order_relaxed),
          .aborts = page_->abort_count.load(std::memory_order_relaxed),
          .forced_opens = page_->forced_count.load(std::memory_order_relaxed),
          .blocked_ns = page_->blocked_ns.load(std::memory_order_relaxed)};
}

std::vector<Nanoseconds> HostGate::drain_segments() {
  const std::scoped_lock lock{drain_mutex_};
  return page_->recent.drain();
}

}  // namespace rose::compute
