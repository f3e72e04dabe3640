#include "compute/stream_gate.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "kernels/gate.h"

namespace rose::compute {

namespace {

using driver::MemoryOperation;

// First and longest polling period. The host polls, because a device rings no bell.
constexpr Nanoseconds kFirstNapNs = 20'000;
constexpr Nanoseconds kLongestNapNs = 250'000;

// Time limit of the gate kernel: longer than every wait of a live host, but short enough that an
// ending process does not leave a kernel on the device for ever.
constexpr std::uint64_t kKernelLimitNs = 600'000'000'000;

constexpr auto kLetsGo = static_cast<std::uint32_t>(GateWord::kOpenBit | GateWord::kDrainBit);

MemoryOperation operation(int kind, driver::DevicePointer address, std::uint32_t value,
                          unsigned flags) noexcept {
  MemoryOperation out{};
  out.operation = kind;
  out.address = address;
  out.value = value;
  out.flags = flags;
  return out;
}

Status check_launches(std::uint32_t launches) noexcept {
  if (launches <= StreamGate::kLongestSegment) return {};
  return Status::invalid_argument(
      "a segment of " + std::to_string(launches) + " launches does not fit the launch queue of " +
      std::to_string(StreamGate::kLaunchQueue) +
      ", so a closed gate would block the host: the longest segment that fits has " +
      std::to_string(StreamGate::kLongestSegment) + " launches; use more gates per step");
}

struct Capture {
  std::uint64_t id{0};
  CUgraph graph{nullptr};
};

Result<Capture> active_capture(const driver::Device& device, CUstream stream) noexcept {
  const driver::Current current{device};
  ROSE_TRY(current.status());
  Capture capture;
  int status = driver::kCaptureStatusNone;
  const CUgraphNode* last = nullptr;
  const driver::GraphEdge* edges = nullptr;
  std::size_t last_count = 0;
  ROSE_TRY(ROSE_CU(device.driver(), cuStreamGetCaptureInfo, stream, &status, &capture.id,
                   &capture.graph, &last, &edges, &last_count));
  if (status != driver::kCaptureStatusActive) {
    return Status::invalid_argument(
        "the stream is not being captured: use pass() outside a capture");
  }
  return capture;
}

// Loads kernel `name`, from the embedded fat binary if `library` is null.
Status load_kernel(const driver::DevicePtr& device,
                   std::shared_ptr<const driver::KernelLibrary>& library, const char* fatbin,
                   const char* name, CUkernel& kernel) noexcept {
  if (library == nullptr) {
    auto embedded = driver::KernelLibrary::create(device, fatbin);
    if (!embedded.ok()) return embedded.status();
    library = embedded.take();
  }
  const Result<CUkernel> found = library->kernel(name);
  if (!found.ok()) return found.status();
  kernel = found.value();
  return {};
}

}  // namespace

// ---- creation

StreamGate::StreamGate(driver::DevicePtr device, CUstream stream, GateKind kind,
                       StreamGateConfig config) noexcept
    : device_{std::move(device)}, stream_{stream}, kind_{kind}, config_{std::move(config)} {}

Result<std::unique_ptr<StreamGate>> StreamGate::create(driver::DevicePtr device,
                                                       std::shared_ptr<HostGate> gate,
                                                       CUstream stream, GateKind kind,
                                                       StreamGateConfig config) noexcept {
  if (kind == GateKind::kHost) {
    return Status::invalid_argument("a StreamGate cannot be of kind HOST: use the HostGate itself");
  }
  if (config.window < 1 || config.window > kLargestWindow) {
    return Status::invalid_argument("window is " + std::to_string(config.window) +
                                    ", but must be from 1 to " + std::to_string(kLargestWindow));
  }
  ROSE_TRY(check_launches(config.launches));
  std::unique_ptr<StreamGate> made{new StreamGate{device, stream, kind, std::move(config)}};
  if (kind == GateKind::kKernel) {
    ROSE_TRY(load_kernel(device, made->config_.library, "gate", "gate_kernel", made->kernel_));
  }
  auto timer = SegmentTimer::create(device, stream);
  if (!timer.ok()) return timer.status();
  made->timer_ = timer.take();
  auto drained = driver::Event::create(device, false);
  if (!drained.ok()) return drained.status();
  made->drained_ = drained.take();
  auto word = DeviceWord::create(std::move(device), std::move(gate));
  if (!word.ok()) return word.status();
  made->word_ = word.take();
  made->enqueued_ = made->gate().passed();
  // A borrower that died during a drain left the drain bit set.
  made->gate().end_drain();
  return made;
}

StreamGate::~StreamGate() {
  if (word_ == nullptr) return;
  if (in_flight() != 0) drain();
  if (in_flight() != 0) {
    DeviceWord::abandon(std::move(word_), {config_.library, config_.branch_library});
  } else {
    gate().end_drain();
  }
}

// ---- the gate in the stream

StreamGate::Operations StreamGate::operations(std::uint32_t segment) const noexcept {
  using namespace driver;
  return {operation(kWaitValue32, word_->credit(), segment, kWaitGeq),
          operation(kWaitValue32, word_->state(), kLetsGo, kWaitAnd),
          operation(kWriteValue32, word_->passed(), segment, 0)};
}

kernels::GateParams StreamGate::kernel_params() const noexcept {
  const auto word = [](driver::DevicePointer at) noexcept {
    return reinterpret_cast<std::uint32_t*>(at);
  };
  return {.state = word(word_->state()),
          .credit = word(word_->credit()),
          .passed = word(word_->passed()),
          .overdue = word(word_->overdue()),
          .limit_ns = kKernelLimitNs,
          .lets_go = kLetsGo};
}

Status StreamGate::enqueue(CUstream stream, std::uint32_t segment) noexcept {
  if (kind_ == GateKind::kKernel) {
    return config_.library->launch(kernel_, driver::Grid{}, stream, kernel_params());
  }
  const driver::Current current{*device_};
  ROSE_TRY(current.status());
  Operations gate = operations(segment);
  return ROSE_CU(device_->driver(), cuStreamBatchMemOp, stream, static_cast<unsigned>(gate.size()),
                 gate.data(), 0);
}

// A captured gate would write its segment number again at every replay, and set `passed` back.
Status StreamGate::refuse_capture(CUstream stream) const noexcept {
  const auto capture = driver::capture_state(*device_, stream);
  // If the driver cannot report captures, insert() does not work either, so the call is allowed.
  if (!capture.ok() || capture.value() == driver::CaptureState::kNone) return {};
  return Status::invalid_argument("the stream is being captured: use insert() instead of pass()");
}

Status StreamGate::start_segment() noexcept {
  ROSE_TRY(refuse_capture(stream_));
  ROSE_TRY(enqueue(stream_, enqueued_ + 1));
  ++enqueued_;
  gate().mark_mid_step();
  timer_->start();
  if (gate().wants_credit()) gate().ring_demand();
  return {};
}

Status StreamGate::set_launches(std::uint32_t launches) noexcept {
  ROSE_TRY(check_launches(launches));
  config_.launches = launches;
  return {};
}

std::uint32_t StreamGate::window() const noexcept {
  return std::min(config_.window, (kLaunchQueue - 1) / (config_.launches + kGateLaunches));
}

bool StreamGate::can_add(std::uint32_t gates) noexcept {
  if (!is_drained() || !gate().is_open()) return false;
  const std::uint32_t waiting = in_flight();
  return waiting == 0 || std::uint64_t{waiting} + gates <= window();
}

// ---- a step

void StreamGate::begin_step() noexcept {
  is_ending_ = false;
  // If the last step is still in the stream, an abort request is kept: the next pass reports it.
  if (in_flight() == 0 || !gate().is_abort_asked()) gate().begin_step();
}

void StreamGate::leave() noexcept {
  timer_->end();
  while (const auto found = timer_->take()) {
    // If the gate was closed meanwhile, a gate in the graph may have waited.
    if (found->close_epoch && *found->close_epoch != gate().close_epoch()) continue;
    gate().record_segment(found->duration_ns / found->segments);
  }
  if (!is_ending_ || in_flight() != 0) return;
  is_ending_ = false;
  gate().end_step();
}

void StreamGate::end_step() noexcept {
  is_ending_ = true;
  leave();
}

Result<std::optional<Verdict>> StreamGate::try_pass() noexcept {
  leave();
  if (must_stop() || !can_add(1)) return std::optional<Verdict>{};
  ROSE_TRY(start_segment());
  return std::optional{Verdict::kPassed};
}

Result<Verdict> StreamGate::pass(Nanoseconds timeout_ns) noexcept {
  leave();
  const Verdict verdict = wait_until([this] { return can_add(1); }, timeout_ns);
  if (verdict == Verdict::kPassed) ROSE_TRY(start_segment());
  return verdict;
}

Verdict StreamGate::settle(Nanoseconds timeout_ns) noexcept {
  leave();
  const Verdict verdict =
      wait_until([this] { return is_drained() && in_flight() == 0; }, timeout_ns);
  leave();
  return verdict;
}

bool StreamGate::must_stop() const noexcept {
  return owed_ || gate().is_shut_down() || gate().is_abort_asked();
}

// Returns an abort or a shut-down, which the borrower must see before any other verdict. This
// verdict is held back until the device has run all work that could not be removed from the stream,
// because the borrower frees the step's blocks as soon as it gets the verdict.
std::optional<Verdict> StreamGate::pending_verdict() noexcept {
  if (!owed_) {
    if (gate().is_shut_down()) {
      owed_ = Verdict::kShutDown;
    } else if (gate().take_abort()) {
      owed_ = Verdict::kAborted;
    } else {
      return std::nullopt;
    }
    drain();
  }
  if (!is_drained()) return std::nullopt;
  return std::exchange(owed_, std::nullopt);
}

template <typename Ready>
Verdict StreamGate::wait_until(Ready is_ready, Nanoseconds timeout_ns) noexcept {
  const Nanoseconds from_ns = real_now_ns();
  Nanoseconds nap_ns = kFirstNapNs;
  std::optional<std::uint32_t> rung_at;  // `passed` at the last ring of the creditor
  Nanoseconds rung_ns = 0;
  for (;;) {
    // Read the bell before the look, so that a change after the look makes the futex return.
    const std::uint32_t seen = gate().bell();
    if (const auto verdict = pending_verdict()) return *verdict;
    const Nanoseconds now_ns = real_now_ns();
    const bool is_now = !owed_ && is_ready();
    const Nanoseconds left_ns = timeout_ns - (now_ns - from_ns);
    if (is_now || left_ns <= 0) {
      if (rung_at) gate().record_wait(now_ns - from_ns);
      return is_now ? Verdict::kPassed : Verdict::kTimedOut;
    }
    gate().count_pause();
    if (rung_at != gate().passed() || now_ns - rung_ns >= HostGate::kLookAgainNs) {
      rung_at = gate().passed();
      rung_ns = now_ns;
      gate().ring_demand();
    }
    gate().wait_bell(seen, std::min(left_ns, nap_ns));
    const Nanoseconds longest_ns = gate().is_open() ? kLongestNapNs : HostGate::kLookAgainNs;
    nap_ns = gate().bell() == seen ? std::min(2 * nap_ns, longest_ns) : kFirstNapNs;
  }
}

// ---- drain

void StreamGate::drain() noexcept {
  timer_->end();
  if (!is_draining_) {
    is_draining_ = true;
    is_marked_ = false;
  }
  const Nanoseconds from_ns = real_now_ns();
  for (Nanoseconds nap_ns = kFirstNapNs; !is_drained();
       nap_ns = std::min(2 * nap_ns, kLongestNapNs)) {
    if (real_now_ns() - from_ns >= config_.drain_ns) {
      ++drain_timeouts_;
      return;
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds{nap_ns});
  }
}

bool StreamGate::is_drained() noexcept {
  if (!is_draining_) return true;
  if (in_flight() != 0) {
    gate().drain_to(enqueued_);
    return false;
  }
  gate().end_drain();
  // Nothing was enqueued since the drain began, so this event lies behind all work.
  if (!is_marked_) is_marked_ = drained_->record(stream_).ok();
  if (!is_marked_) return false;
  const Result<bool> done = drained_->is_done();
  is_draining_ = !done.ok() || !done.value();
  return !is_draining_;
}

// ---- graphs

Status StreamGate::insert(CUstream stream) noexcept {
  const Result<Capture> found = active_capture(*device_, stream);
  if (!found.ok()) return found.status();
  const Capture& capture = found.value();
  GraphGates& gates = graphs_[capture.graph];
  // The handle of a destroyed graph may be reused.
  if (gates.capture_id != capture.id) {
    gates = GraphGates{};
    gates.capture_id = capture.id;
  }
  if (kind_ == GateKind::kKernel) {
    ROSE_TRY(enqueue(stream, 0));
  } else {
    Operations placeholder = operations(0);
    const Result<CUgraphNode> node = driver::insert_mem_ops(*device_, stream, placeholder);
    if (!node.ok()) return node.status();
    gates.nodes.push_back(node.value());
  }
  ++gates.count;
  return {};
}

Result<StreamGate::GraphGates*> StreamGate::gates_of(const driver::Graph& graph) noexcept {
  const auto found = graphs_.find(graph.get());
  if (found == graphs_.end() || found->second.count == 0) {
    return Status::invalid_argument(
        "the graph has no gate of this StreamGate: call insert() before each segment while the "
        "graph is captured");
  }
  return &found->second;
}

bool StreamGate::can_launch(const GraphGates& gates) noexcept {
  const std::uint32_t passed = gate().passed();
  // Compared relative to `passed`, so that a finished launch does not count as in flight.
  const bool is_in_flight = gates.last - passed - 1 < enqueued_ - passed;
  return !is_in_flight && can_add(gates.count);
}

// A graph is measured as a whole, if none of its gates has to wait for credit.
void StreamGate::time_graph(const GraphGates& gates) noexcept {
  const std::uint32_t close_epoch = gate().close_epoch();
  if (gate().credit_left() < in_flight() + gates.count || !gate().is_open()) return;
  timer_->start(gates.count, close_epoch);
}

Status StreamGate::start_graph(driver::Graph& graph, GraphGates& gates) noexcept {
  ROSE_TRY(refuse_capture(stream_));
  std::uint32_t segment = enqueued_;
  for (CUgraphNode node : gates.nodes) {
    Operations next = operations(++segment);
    ROSE_TRY(graph.update(node, std::span{next}.first(gates.operations)));
  }
  time_graph(gates);
  const Status launched = graph.launch(stream_);
  if (!launched.ok()) timer_->drop();
  ROSE_TRY(launched);
  enqueued_ += gates.count;
  gate().mark_mid_step();
  gates.last = enqueued_;
  if (gate().wants_credit()) gate().ring_demand();
  return {};
}

Result<Verdict> StreamGate::launch(driver::Graph& graph, Nanoseconds timeout_ns) noexcept {
  timer_->drop();  // the running segment ends at the first gate in the graph, not here
  leave();
  const Result<GraphGates*> gates = gates_of(graph);
  if (!gates.ok()) return gates.status();
  const Verdict verdict = wait_until([&] { return can_launch(*gates.value()); }, timeout_ns);
  if (verdict == Verdict::kPassed) ROSE_TRY(start_graph(graph, *gates.value()));
  return verdict;
}

// ---- graphs that an abort ends

Status StreamGate::add_branch(driver::GraphChain& chain, GraphGates& gates,
                              CUgraph segment) noexcept {
  const auto condition = chain.make_condition();
  if (!condition.ok()) return condition.status();
  if (kind_ == GateKind::kMemop) {
    Operations waits = operations(0);
    const auto node = chain.add_mem_ops(std::span{waits}.first(gates.operations));
    if (!node.ok()) return node.status();
    gates.nodes.push_back(node.value());
  }
  kernels::BranchParams branch{.gate = kernel_params(),
                               .condition = condition.value(),
                               .skips = static_cast<std::uint32_t>(GateWord::kDrainBit),
                               .has_waited = kind_ == GateKind::kMemop ? 1U : 0U};
  void* arguments[] = {&branch};
  ROSE_TRY(chain.add_kernel(branch_, arguments));
  ++gates.count;
  return chain.add_if(condition.value(), segment);
}

Result<std::unique_ptr<driver::Graph>> StreamGate::make_abortable(
    std::span<const CUgraph> segments) noexcept {
  if (segments.empty()) {
    return Status::invalid_argument("an abortable graph needs at least one segment, got none");
  }
  if (branch_ == nullptr) {
    ROSE_TRY(load_kernel(device_, config_.branch_library, "branch", "branch_kernel", branch_));
  }
  auto chain = driver::GraphChain::create(device_);
  if (!chain.ok()) return chain.status();
  GraphGates gates;
  gates.operations = 2;
  for (CUgraph segment : segments) ROSE_TRY(add_branch(*chain.value(), gates, segment));
  auto graph = chain.value()->instantiate();
  // The handle of a destroyed graph may be reused.
  if (graph.ok()) graphs_[graph.value()->get()] = std::move(gates);
  return graph;
}

}  // namespace rose::compute
