#include "compute/gate_probe.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace rose::compute {

namespace {

// Time limits of the probe's waits, and the number of wake-ups it measures.
constexpr Nanoseconds kWakeNs = 100'000'000;
constexpr Nanoseconds kAliasNs = 20'000'000;
constexpr int kWakes = 5;
// Smallest accepted CUDA_DEVICE_MAX_CONNECTIONS: the driver's default. With fewer hardware
// connections than streams, a serving stream is queued behind a waiting borrower.
constexpr int kFewestConnections = 8;

Nanoseconds now_ns() noexcept { return BootClock{}.now_ns(); }

double us_of(Nanoseconds ns) noexcept { return static_cast<double>(ns) / 1e3; }

// Returns the time from `from_ns` until `event` was seen complete; nothing if that takes longer
// than `timeout_ns`. Polls without sleeping, because a sleep would distort the measurement.
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

// Releases the borrower's stream if this object is still alive after `limit_ns`. By then a launch
// behind the gate has blocked its host thread, and nothing else could unblock that thread.
class Rescue {
 public:
  Rescue(HostGate& gate, std::uint32_t last, Nanoseconds limit_ns) noexcept
      : thread_{[this, &gate, last, limit_ns] {
          std::unique_lock lock{mutex_};
          if (over_.wait_for(lock, std::chrono::nanoseconds{limit_ns}, [this] { return is_over_; }))
            return;
          gate.drain_to(last);
          has_acted_ = true;
        }} {}
  ~Rescue() { stop(); }
  Rescue(const Rescue&) = delete;
  Rescue& operator=(const Rescue&) = delete;

  // Ends the watch; true if the stream was released.
  bool stop() noexcept {
    {
      const std::lock_guard lock{mutex_};
      is_over_ = true;
    }
    over_.notify_one();
    if (thread_.joinable()) thread_.join();
    return has_acted_;
  }

 private:
  std::mutex mutex_;  // guards is_over_
  std::condition_variable over_;
  bool is_over_{false};
  bool has_acted_{false};  // read after the join
  std::thread thread_;     // last: it uses all of the above
};

// Tests one kind of gate. A failed Status says why the kind is refused.
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
    ROSE_TRY(load_kernel());
    ROSE_TRY(choose_streams());
    auto made = StreamGate::create(device_, gate_, request_.borrower, kind,
                                   {.window = 1, .drain_ns = kWakeNs, .library = request_.library});
    if (!made.ok()) return made.status();
    stream_gate_ = made.take();
    return {};
  }

  // If this build has no device code, only events are tested.
  Status load_kernel() noexcept {
    library_ = request_.library;
    if (library_ == nullptr) {
      auto embedded = driver::KernelLibrary::create(device_, "gate");
      if (!embedded.ok() && driver::embedded_fatbins().empty()) return {};
      if (!embedded.ok()) return embedded.status();
      library_ = embedded.take();
    }
    const auto found = library_->kernel("probe_kernel");
    if (!found.ok()) return found.status();
    kernel_ = found.value();
    const auto whole = library_->kernel("whole_device_kernel");
    if (!whole.ok()) return whole.status();
    whole_ = whole.value();
    return library_->allow_shared(whole_, device_->facts().shared_bytes_max);
  }

  // Streams share hardware connections within their priority class. The borrower's stream is in the
  // class of torch's streams, so a stream of that class is tested, too.
  Status choose_streams() noexcept {
    auto plain = driver::Stream::create(device_, driver::StreamPriority::kLowest);
    if (!plain.ok()) return plain.status();
    plain_ = plain.take();
    for (std::size_t i = 0; i < request_.serving.size(); ++i) {
      streams_.push_back({"stream number " + std::to_string(i), request_.serving[i]});
    }
    streams_.push_back({"the default stream", nullptr});
    streams_.push_back({"a stream of default priority", plain_->get()});
    return {};
  }

  Status run_in(CUstream stream, driver::Event& after) noexcept {
    if (kernel_ != nullptr) ROSE_TRY(library_->launch(kernel_, {}, stream));
    return after.record(stream);
  }

  // Enqueues a gate that is open but has no credit, and behind it a kernel and an event.
  Status park() noexcept {
    ROSE_CHECK(gate_->open(gate_->close_epoch()), "the probe's own gate did not open");
    Rescue rescue{*gate_, stream_gate_->enqueued() + 1, request_.launch_ns};
    const auto verdict = stream_gate_->try_pass();
    const Status behind = verdict.ok() ? run_in(request_.borrower, *behind_) : verdict.status();
    if (rescue.stop()) {
      gate_->end_drain();
      return Status::unavailable(
          "a launch behind a closed gate blocks its host thread: CUDA_LAUNCH_BLOCKING or a "
          "profiler makes launches wait for their completion; unset it or detach the profiler");
    }
    ROSE_TRY(behind);
    ROSE_CHECK(verdict.value() == Verdict::kPassed, "the probe's own gate was not enqueued");
    return {};
  }

  Status hold(const char* how) noexcept {
    const auto done = wait_done(*behind_, now_ns(), request_.hold_ns);
    if (!done.ok()) return done.status();
    if (!done.value()) return {};
    return Status::unavailable(std::string{"the gate let a segment start "} + how);
  }

  Status look_at_serving(KindProbe& out) noexcept {
    for (const auto& [name, stream] : streams_) {
      const Nanoseconds from_ns = now_ns();
      const auto waited = time_of([&](driver::Event& after) { return run_in(stream, after); });
      if (!waited.ok()) return waited.status();
      out.alias_us = std::max(out.alias_us, us_of(waited.value().value_or(now_ns() - from_ns)));
      if (!waited.value()) {
        return Status::unavailable("a parked borrower stalls serving streams: " + name +
                                   " made no progress while the borrower's stream waited");
      }
    }
    return kernel_ == nullptr ? Status{} : look_at_whole_device();
  }

  // Kernels that take a whole multiprocessor per CTA must have all of them at once: a cooperative
  // one would wait for serving to become idle, and serving for it.
  Status look_at_whole_device() noexcept {
    const driver::DeviceFacts& facts = device_->facts();
    const driver::Grid grid{.blocks = static_cast<unsigned>(facts.multiprocessors),
                            .shared_bytes = static_cast<unsigned>(facts.shared_bytes_max)};
    const CUstream stream = streams_.front().second;
    const auto waited = time_of([&](driver::Event& after) {
      ROSE_TRY(library_->launch(whole_, grid, stream));
      return after.record(stream);
    });
    if (!waited.ok()) return waited.status();
    if (waited.value()) return {};
    return Status::unavailable(
        "a parked borrower keeps a part of a multiprocessor: a serving kernel that needs the "
        "shared memory of all " +
        std::to_string(facts.multiprocessors) + " did not run at once");
  }

  // Time of what `launch` puts into a stream in front of the event; nothing if it takes longer than
  // kAliasNs.
  template <typename Launch>
  Result<std::optional<Nanoseconds>> time_of(const Launch& launch) noexcept {
    auto event = driver::Event::create(device_, false);
    if (!event.ok()) return event.status();
    const Nanoseconds from_ns = now_ns();
    ROSE_TRY(launch(*event.value()));
    auto waited = wait_done(*event.value(), from_ns, kAliasNs);
    if (waited.ok() && !waited.value()) keep_code();
    return waited;
  }

  // Keeps the code of a kernel that is still in a stalled stream until the process ends, because
  // unloading the code could wait for that stream.
  void keep_code() noexcept {
    if (kernel_ != nullptr) (void)new std::shared_ptr{library_};
  }

  Status wake(KindProbe& out) noexcept {
    const Nanoseconds from_ns = now_ns();
    ROSE_CHECK(gate_->open(gate_->close_epoch()), "the probe's own gate did not open");
    const auto waited = wait_done(*behind_, from_ns, kWakeNs);
    if (!waited.ok()) return waited.status();
    if (!waited.value()) {
      out.is_stuck = true;
      return Status::unavailable("the segment behind the gate did not start after the gate opened");
    }
    const double wake_us = us_of(*waited.value());
    out.wake_us = out.wake_us == 0 ? wake_us : std::min(out.wake_us, wake_us);
    return {};
  }

  driver::DevicePtr device_;
  const ProbeRequest& request_;
  std::shared_ptr<HostGate> gate_;
  std::unique_ptr<driver::Event> behind_;
  std::shared_ptr<const driver::KernelLibrary> library_;
  CUkernel kernel_{nullptr};
  CUkernel whole_{nullptr};
  std::unique_ptr<driver::Stream> plain_;
  std::vector<std::pair<std::string, CUstream>> streams_;  // each with its name in a refusal
  // Declared last, so destroyed first: its destructor lets parked work finish.
  std::unique_ptr<StreamGate> stream_gate_;
};

// Fails if the kind can be refused without a test; ok if it must be tested.
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
  out.why = status.ok() ? "the gate holds and opens, and serving streams make progress beside it"
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
