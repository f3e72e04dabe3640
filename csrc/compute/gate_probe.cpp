#include "compute/gate_probe.h"

#include <algorithm>
#include <thread>

namespace rose::compute {

namespace {

// Time limits of the probe's waits, and the number of wake-ups it measures.
constexpr Nanoseconds kWakeNs = 100'000'000;
constexpr Nanoseconds kAliasNs = 20'000'000;
constexpr int kWakes = 5;
// Fewest hardware connections: the driver's default. With fewer, a device with as many streams as
// ours certainly queues a serving stream behind a waiting borrower.
constexpr int kFewestConnections = 8;

Nanoseconds now_ns() noexcept { return BootClock{}.now_ns(); }

double us_of(Nanoseconds ns) noexcept { return static_cast<double>(ns) / 1e3; }

// Returns the time at which `event` was seen complete, at most `timeout_ns` after `from_ns`. Never
// sleeps, because it measures.
Result<std::optional<Nanoseconds>> wait_done(const driver::Event& event, Nanoseconds from_ns,
                                             Nanoseconds timeout_ns) noexcept {
  for (;;) {
    const Nanoseconds waited_ns = now_ns() - from_ns;
    const Result<bool> done = event.is_done();
    if (!done.ok()) return done.status();
    if (done.value()) return std::optional{waited_ns};
    if (waited_ns >= timeout_ns) return std::optional<Nanoseconds>{};
    std::this_thread::yield();
  }
}

// A test of one kind of gate. A Status is the reason for its refusal.
class Trial {
 public:
  Trial(driver::DevicePtr device, const ProbeRequest& request) noexcept
      : device_{std::move(device)}, request_{request} {}

  Status run(GateKind kind, KindProbe& out) noexcept {
    ROSE_TRY(set_up(kind));
    ROSE_TRY(park());
    ROSE_TRY(hold("without credit"));
    gate_->close(CloseReason::kArrival);
    gate_->set_credit(stream_gate_->enqueued());
    ROSE_TRY(hold("while it was closed"));
    ROSE_TRY(look_at_serving(out));
    ROSE_TRY(wake(out));
    for (int i = 1; i < kWakes; ++i) {
      ROSE_TRY(park());
      ROSE_TRY(hold("without credit"));
      gate_->close(CloseReason::kArrival);
      gate_->set_credit(stream_gate_->enqueued());
      ROSE_TRY(wake(out));
    }
    return {};
  }

 private:
  Status set_up(GateKind kind) noexcept {
    auto gate = HostGate::create(std::make_shared<BootClock>());
    if (!gate.ok()) return gate.status();
    gate_ = gate.take();
    auto event = driver::Event::create(device_, false);
    if (!event.ok()) return event.status();
    behind_ = event.take();
    auto made = StreamGate::create(device_, gate_, request_.borrower, kind,
                                   {.window = 1, .drain_ns = kWakeNs, .library = request_.library});
    if (!made.ok()) return made.status();
    stream_gate_ = made.take();
    return {};
  }

  // Enqueues a gate that is open but has no credit, and an event behind it.
  Status park() noexcept {
    ROSE_CHECK(gate_->open(gate_->close_epoch()), "the probe's own gate did not open");
    const auto verdict = stream_gate_->try_pass();
    if (!verdict.ok()) return verdict.status();
    ROSE_CHECK(verdict.value() == Verdict::kPassed, "the probe's own gate was not enqueued");
    return behind_->record(request_.borrower);
  }

  Status hold(const char* how) noexcept {
    const auto done = wait_done(*behind_, now_ns(), request_.hold_ns);
    if (!done.ok()) return done.status();
    if (!done.value()) return {};
    return Status::unavailable(std::string{"the gate let a segment start "} + how);
  }

  Status look_at_serving(KindProbe& out) noexcept {
    std::vector<std::unique_ptr<driver::Event>> events;
    for (CUstream stream : request_.serving) {
      auto event = driver::Event::create(device_, false);
      if (!event.ok()) return event.status();
      events.push_back(event.take());
      const Nanoseconds from_ns = now_ns();
      ROSE_TRY(events.back()->record(stream));
      const auto waited = wait_done(*events.back(), from_ns, kAliasNs);
      if (!waited.ok()) return waited.status();
      out.alias_us = std::max(out.alias_us, us_of(waited.value().value_or(kAliasNs)));
      if (!waited.value()) {
        return Status::unavailable("a parked borrower stalls serving streams: number " +
                                   std::to_string(events.size() - 1) +
                                   " made no progress while the borrower's waited");
      }
    }
    return {};
  }

  Status wake(KindProbe& out) noexcept {
    const Nanoseconds from_ns = now_ns();
    ROSE_CHECK(gate_->open(gate_->close_epoch()), "the probe's own gate did not open");
    const auto waited = wait_done(*behind_, from_ns, kWakeNs);
    if (!waited.ok()) return waited.status();
    if (!waited.value()) {
      out.is_stuck = true;
      return Status::unavailable("the gate did not let its segment start when it was opened");
    }
    const double wake_us = us_of(*waited.value());
    out.wake_us = out.wake_us == 0 ? wake_us : std::min(out.wake_us, wake_us);
    return {};
  }

  driver::DevicePtr device_;
  const ProbeRequest& request_;
  std::shared_ptr<HostGate> gate_;
  std::unique_ptr<driver::Event> behind_;
  // Declared last, so destroyed first: its destructor lets parked work run out.
  std::unique_ptr<StreamGate> stream_gate_;
};

// Reasons for refusal that need no test; ok if the kind must be tested.
Status rule_out(GateKind kind, const ProbeRequest& request) noexcept {
  if (kind == GateKind::kKernel && !request.in_one_process) {
    return Status::unavailable(
        "a waiting kernel keeps the borrower's context on the device: from another process it "
        "would take time slices from serving");
  }
  if (request.max_connections.value_or(kFewestConnections) < kFewestConnections) {
    return Status::unavailable("CUDA_DEVICE_MAX_CONNECTIONS is " +
                               std::to_string(*request.max_connections) +
                               ", so a parked borrower would stall serving streams: set it to at "
                               "least " +
                               std::to_string(kFewestConnections) + ", or unset it");
  }
  return {};
}

KindProbe probe(GateKind kind, const driver::DevicePtr& device,
                const ProbeRequest& request) noexcept {
  KindProbe out;
  Status status = rule_out(kind, request);
  if (status.ok()) status = Trial{device, request}.run(kind, out);
  out.is_usable = status.ok();
  out.why = status.ok() ? "it holds, it opens, and serving streams make progress beside it"
                        : status.message();
  return out;
}

}  // namespace

GateProbe probe_gates(const driver::DevicePtr& device, const ProbeRequest& request) noexcept {
  GateProbe out;
  out.memop = probe(GateKind::kMemop, device, request);
  if (out.memop.is_stuck) {
    out.kernel.why = "not tried: the borrower's stream is stuck";
  } else if (out.memop.is_usable && !request.try_all) {
    out.kernel.why = "not tried: MEMOP works";
  } else {
    out.kernel = probe(GateKind::kKernel, device, request);
  }
  if (out.memop.is_usable) {
    out.choice = {GateKind::kMemop, "MEMOP: " + out.memop.why};
  } else if (out.kernel.is_usable) {
    out.choice = {GateKind::kKernel, "KERNEL: " + out.kernel.why + "; MEMOP: " + out.memop.why};
  } else {
    out.choice = {GateKind::kHost, "MEMOP: " + out.memop.why + "; KERNEL: " + out.kernel.why};
  }
  return out;
}

}  // namespace rose::compute
