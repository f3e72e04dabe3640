// The gate on a device: the borrower's stream stops between two segments, not its host thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "compute/device_word.h"
#include "compute/host_gate.h"
#include "compute/segment_timer.h"
#include "driver/graph.h"
#include "driver/kernel_library.h"
#include "driver/stream.h"

namespace rose::kernels {
struct GateParams;
}

namespace rose::compute {

enum class GateKind : std::uint8_t { kHost, kMemop, kKernel };

struct StreamGateConfig {
  std::uint32_t window{2};              // segments in the stream that have not started; 1 to 64
  std::uint32_t launches{1};            // what the engine puts into the stream for one, at most
  Nanoseconds drain_ns{1'000'000'000};  // how long an abort waits for the device
  // With gate_kernel, for KERNEL, and with branch_kernel, for abortable graphs; null: the embedded.
  std::shared_ptr<const driver::KernelLibrary> library{};
  std::shared_ptr<const driver::KernelLibrary> branch_library{};
};

// The borrower's half of a gate, for segments that run on a device; the HostGate behind it is the
// other half, for serving and the creditor, and its own borrower's calls are not used. Same calls,
// same meaning, but for this: kPassed says that the segment may be put into the stream, where it
// starts when the device has passed its gate.
//
// 1. Gate number s in the stream waits for credit >= s, then for the open bit, then writes
//    passed = s (MEMOP: one batch, in this order; KERNEL: kernels/gate.h). The open bit comes last:
//    a segment whose credit was seen before a close still waits for the next opening. That opening
//    covers it, because s is passed + 1 at the head of a stream and every quantum is positive. So
//    no segment starts after a close was visible to the device, and none without credit.
// 2. At most `window` segments are in the stream beyond `passed`, and none is added while the gate
//    is closed: the host waits instead. (A graph with more gates than the window goes alone.)
// 3. What is in the stream cannot be taken out again, and its blocks are pinned. So an abort, and a
//    shut-down, let these segments and no others run to their end: the drain bit is set until the
//    last has started, then the stream is waited for. kAborted and kShutDown are told when that is
//    over and the blocks are free, not before; a device that is late is counted in
//    drain_timeouts(), until then the answer is kTimedOut, and no opening succeeds.
// 4. Every wait ends at its deadline. After a Status the gate is as if the call had not been made.
//
// Threads: one, the borrower's; all waits may be made without any lock. Before it waits for the
// stream by any other means the borrower calls settle(): else a segment behind a closed gate holds
// the thread that an abort needs.
class StreamGate {
 public:
  static constexpr std::uint32_t kLargestWindow = 64;
  // Launches that a stream takes while nothing of it starts. The next one blocks the host, inside
  // the driver and with whatever locks the caller holds, until the gate opens. The driver states no
  // number; 1,024 is what is seen, and a gate with its two events is three of them.
  static constexpr std::uint32_t kLaunchQueue = 1024;
  static constexpr std::uint32_t kGateLaunches = 3;

  // InvalidArgument for kHost, a bad window, or one whose launches the queue cannot take. KERNEL
  // loads its kernel here. On error nothing is registered, and the gate can be used as before.
  static Result<std::unique_ptr<StreamGate>> create(driver::DevicePtr device,
                                                    std::shared_ptr<HostGate> gate, CUstream stream,
                                                    GateKind kind,
                                                    StreamGateConfig config = {}) noexcept;
  // Drains. Graphs with gates in them must not be launched any more.
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  void begin_step() noexcept;
  // Ends the segment before this gate and puts the gate of the next one into the stream, if that
  // needs no waiting. InvalidArgument while the stream is being captured.
  Result<std::optional<Verdict>> try_pass() noexcept;
  Result<Verdict> pass(Nanoseconds timeout_ns) noexcept;
  // Waits until every segment in the stream has started: from then on nothing of this step waits
  // at a gate. kAborted and kShutDown as in pass.
  Verdict settle(Nanoseconds timeout_ns) noexcept;
  // Ends the last segment of a step.
  void leave() noexcept;
  // A step that was not settled goes on until its last segment has started, for the creditor and
  // for abort_step: the next call here that sees it ends it.
  void end_step() noexcept;

  // Puts a gate into the graph that `stream` is being captured into.
  Status insert(CUstream stream) noexcept;
  // Makes a graph of `segments`, each behind a gate of its own, which an abort or a shut-down ends
  // within the segment that runs: the segments after it are bodies of IF nodes and left out
  // (docs/adr/0008 on the numbers). Launched by launch(). The segments are cloned; they hold
  // kernels, copies and fills only. Unavailable before CUDA 12.3, and without device code. For use
  // before serving starts: it loads a kernel.
  Result<std::unique_ptr<driver::Graph>> make_abortable(std::span<const CUgraph> segments) noexcept;
  // Launches a graph with inserted gates in the borrower's stream, when the gate lets all of them
  // be added and the launch before it has passed its last gate. docs/adr/0008 on their numbers.
  // InvalidArgument for a graph without gates.
  Result<Verdict> launch(driver::Graph& graph, Nanoseconds timeout_ns) noexcept;

  // Whether nothing that an abort or a shut-down left behind is on the device. Never waits.
  bool is_drained() noexcept;

  GateKind kind() const noexcept { return kind_; }
  HostGate& gate() const noexcept { return word_->gate(); }
  // The number of the last segment that was put into the stream.
  std::uint32_t enqueued() const noexcept { return enqueued_; }
  std::uint32_t in_flight() const noexcept { return enqueued_ - gate().passed(); }
  std::uint64_t drain_timeouts() const noexcept { return drain_timeouts_; }

 private:
  // The gates of one captured graph, in the order of capture.
  struct GraphGates {
    std::uint64_t capture_id{0};
    std::uint32_t count{0};
    std::vector<CUgraphNode> nodes;  // of MEMOP; KERNEL needs no new numbers
    std::size_t operations{3};       // of each node: 2 where a kernel behind it writes `passed`
    std::uint32_t last{0};           // the number of its last gate in its last launch
  };
  using Operations = std::array<driver::MemoryOperation, 3>;

  StreamGate(driver::DevicePtr device, CUstream stream, GateKind kind,
             StreamGateConfig config) noexcept;
  kernels::GateParams kernel_params() const noexcept;
  Status add_branch(driver::GraphChain& chain, GraphGates& gates, CUgraph segment) noexcept;

  Operations operations(std::uint32_t segment) const noexcept;
  Status enqueue(CUstream stream, std::uint32_t segment) noexcept;
  Status refuse_capture(CUstream stream) const noexcept;
  Status start_segment() noexcept;
  Status start_graph(driver::Graph& graph, GraphGates& gates) noexcept;
  Result<GraphGates*> gates_of(const driver::Graph& graph) noexcept;

  bool can_add(std::uint32_t gates) noexcept;
  bool can_launch(const GraphGates& gates) noexcept;
  bool is_told_to_stop() const noexcept;

  std::optional<Verdict> told() noexcept;
  template <typename Ready>
  Verdict wait_until(Ready is_ready, Nanoseconds timeout_ns) noexcept;
  void drain() noexcept;

  driver::DevicePtr device_;
  CUstream stream_;
  GateKind kind_;
  StreamGateConfig config_;
  std::unique_ptr<DeviceWord> word_;
  std::unique_ptr<SegmentTimer> timer_;
  CUkernel kernel_{nullptr};
  CUkernel branch_{nullptr};  // of abortable graphs

  std::uint32_t enqueued_{0};
  bool is_ending_{false};  // end_step came before the last segment had started
  std::unordered_map<CUgraph, GraphGates> graphs_;

  std::unique_ptr<driver::Event> drained_;
  std::optional<Verdict> owed_;  // kAborted or kShutDown, while the device is late
  bool is_draining_{false};
  bool is_marked_{false};  // drained_ lies behind all work of this drain
  std::uint64_t drain_timeouts_{0};
};

}  // namespace rose::compute
