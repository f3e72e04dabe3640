// The gate on a device: not the borrower's host thread but its stream waits between two segments.
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

// Kind of a gate, by its waiting party. HOST: the borrower's thread waits. MEMOP: the stream waits,
// by memory operations of the driver. KERNEL: the stream waits, by a kernel of one thread.
enum class GateKind : std::uint8_t { kHost, kMemop, kKernel };

struct StreamGateConfig {
  // Maximum segments enqueued but not started, 1 to 64; fewer if the launch queue holds fewer.
  std::uint32_t window{2};
  std::uint32_t launches{1};            // maximum launches of the engine per segment
  Nanoseconds drain_ns{1'000'000'000};  // maximum wait of an abort for the device
  // Libraries with gate_kernel (for KERNEL) and branch_kernel (for abortable graphs); null: the
  // embedded ones.
  std::shared_ptr<const driver::KernelLibrary> library{};
  std::shared_ptr<const driver::KernelLibrary> branch_library{};
};

// The borrower's side of a gate whose segments run on a device. Serving and the creditor use the
// HostGate behind it. The borrower uses the calls here instead of those of the HostGate. They mean
// the same, except that kPassed only allows the segment to enter the stream: the segment starts
// when the device has passed its gate.
//
// 1. Gate number s in the stream waits for credit >= s, then for the open bit, then writes
//    passed = s (MEMOP: one batch, in this order; KERNEL: kernels/gate.h). The open bit comes last:
//    a segment that saw its credit before a close still waits for the next opening. The credit of
//    that opening includes this segment, because the first waiting gate has number passed + 1 and
//    every quantum is at least 1. So no segment starts after a close was visible to the device, and
//    none without credit.
// 2. At most `window` segments are in the stream beyond `passed`, and none is added while the gate
//    is closed: the host waits instead. (A graph with more gates than the window is added only when
//    no segment waits.)
// 3. Enqueued segments cannot be removed, and their blocks are pinned. So an abort or a shut-down
//    lets exactly these segments finish: the drain bit is set until the last has started, then the
//    host waits for the stream. Only then, when no work uses the blocks, a call returns kAborted or
//    kShutDown. Until then the answer is kTimedOut, and no opening succeeds; drain_timeouts()
//    counts the drains that took longer than drain_ns.
// 4. Every wait ends at its deadline. After an error the gate is unchanged.
//
// Only the borrower's thread uses this object, and no wait takes a lock. Call settle() before any
// other wait for the stream: otherwise a segment behind a closed gate blocks the thread that an
// abort needs.
class StreamGate {
 public:
  static constexpr std::uint32_t kLargestWindow = 64;
  // Launches that a stalled stream accepts. The next launch blocks the host inside the driver until
  // the gate opens, while the caller keeps its locks. The driver documents no number; 1,024 was
  // observed. A gate with its two events counts as three launches.
  static constexpr std::uint32_t kLaunchQueue = 1024;
  static constexpr std::uint32_t kGateLaunches = 3;
  // Launches of the longest segment that the queue accepts behind its gate.
  static constexpr std::uint32_t kLongestSegment = kLaunchQueue - 1 - kGateLaunches;

  // InvalidArgument for kHost, a window out of range, or more than kLongestSegment launches. KERNEL
  // loads its kernel here. On error nothing is registered, and the gate is unchanged.
  static Result<std::unique_ptr<StreamGate>> create(driver::DevicePtr device,
                                                    std::shared_ptr<HostGate> gate, CUstream stream,
                                                    GateKind kind,
                                                    StreamGateConfig config = {}) noexcept;
  // Drains the stream. Do not launch graphs with gates of this object afterwards.
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  // Sets the launches of the longest segment, once they are measured. InvalidArgument, and no
  // change, beyond kLongestSegment.
  Status set_launches(std::uint32_t launches) noexcept;
  // Maximum segments in the stream beyond `passed`.
  std::uint32_t window() const noexcept;

  void begin_step() noexcept;
  // Ends the segment before this gate, and enqueues the gate of the next segment if no wait is
  // necessary. Returns nothing if the borrower must wait; InvalidArgument while the stream is being
  // captured.
  Result<std::optional<Verdict>> try_pass() noexcept;
  Result<Verdict> pass(Nanoseconds timeout_ns) noexcept;
  // Waits until every segment in the stream has started. Afterwards nothing of this step waits at a
  // gate. Returns kAborted and kShutDown as pass does.
  Verdict settle(Nanoseconds timeout_ns) noexcept;
  // Ends the last segment of a step.
  void leave() noexcept;
  // Without settle(), the step counts as running for the creditor and abort_step until its last
  // segment has started; a later call on this object ends the step.
  void end_step() noexcept;

  // Adds a gate to the graph that `stream` is being captured into. The segments of a graph are
  // timed together: each segment counts with an equal share of the time.
  Status insert(CUstream stream) noexcept;
  // Makes a graph of `segments`, each behind its own gate, for launch(). Each segment is the body
  // of an IF node: after an abort or a shut-down the running segment ends, and the others are
  // skipped. docs/adr/0008 says how gates are numbered. Segments are cloned, and may contain only
  // kernels, copies and fills. Unavailable before CUDA 12.3, and in a build without device code.
  // Call this before serving starts, because it loads a kernel.
  Result<std::unique_ptr<driver::Graph>> make_abortable(std::span<const CUgraph> segments) noexcept;
  // Launches a graph with inserted gates in the borrower's stream, once all its gates may be added
  // and its previous launch has passed its last gate (gate numbers: docs/adr/0008). InvalidArgument
  // for a graph without gates.
  Result<Verdict> launch(driver::Graph& graph, Nanoseconds timeout_ns) noexcept;

  // True if no work of an aborted or shut-down step is left on the device. Never waits.
  bool is_drained() noexcept;

  GateKind kind() const noexcept { return kind_; }
  HostGate& gate() const noexcept { return word_->gate(); }
  // Number of the last enqueued segment.
  std::uint32_t enqueued() const noexcept { return enqueued_; }
  std::uint32_t in_flight() const noexcept { return enqueued_ - gate().passed(); }
  std::uint64_t drain_timeouts() const noexcept { return drain_timeouts_; }

 private:
  // The gates of one captured graph, in the order of capture.
  struct GraphGates {
    std::uint64_t capture_id{0};
    std::uint32_t count{0};
    std::vector<CUgraphNode> nodes;  // MEMOP: renumbered at each launch; KERNEL: empty
    std::size_t operations{3};       // operations per node: 2 if a later kernel writes `passed`
    std::uint32_t last{0};           // number of the last gate in the last launch
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
  void time_graph(const GraphGates& gates) noexcept;
  Status start_graph(driver::Graph& graph, GraphGates& gates) noexcept;
  Result<GraphGates*> gates_of(const driver::Graph& graph) noexcept;

  bool can_add(std::uint32_t gates) noexcept;
  bool can_launch(const GraphGates& gates) noexcept;
  bool must_stop() const noexcept;

  std::optional<Verdict> pending_verdict() noexcept;
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
  CUkernel branch_{nullptr};  // kernel of abortable graphs

  std::uint32_t enqueued_{0};
  bool is_ending_{false};  // end_step came before the last segment had started
  std::unordered_map<CUgraph, GraphGates> graphs_;

  std::unique_ptr<driver::Event> drained_;
  std::optional<Verdict> owed_;  // kAborted or kShutDown, to be returned after the drain
  bool is_draining_{false};
  bool is_marked_{false};  // drained_ was recorded after all work of this drain
  std::uint64_t drain_timeouts_{0};
};

}  // namespace rose::compute
