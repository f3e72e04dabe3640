// Capture of a stream into a graph, and nodes that rose puts between those of the engine.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "driver/device.h"

namespace rose::driver {

enum class CaptureState { kNone, kActive, kInvalidated };
Result<CaptureState> capture_state(const Device& device, CUstream stream) noexcept;

// Puts a batch of memory operations into the graph that `stream` is being captured into, after all
// that was captured so far, and makes all that comes later depend on it. Returns the new node,
// which Graph::update takes. InvalidArgument when the stream is not being captured. After any other
// error the capture is of no use: end it and drop its graph.
Result<CUgraphNode> insert_mem_ops(const Device& device, CUstream stream,
                                   std::span<MemoryOperation> operations) noexcept;

// Owns an instantiated graph. One thread at a time.
class Graph {
 public:
  // Makes one of a graph that somebody else captured and keeps as long as this lives; torch shows
  // it as raw_cuda_graph().
  static Result<std::unique_ptr<Graph>> instantiate(DevicePtr device, CUgraph captured) noexcept;
  // begin_capture(stream) ... end_capture(stream) by the thread that issues the work. What other
  // threads call meanwhile is not restricted: serving is in one of them. When the capture was
  // invalidated, end_capture fails and leaves the stream usable.
  static Status begin_capture(const Device& device, CUstream stream) noexcept;
  static Result<std::unique_ptr<Graph>> end_capture(DevicePtr device, CUstream stream) noexcept;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // The handle that cuStreamGetCaptureInfo showed while this was captured.
  CUgraph get() const noexcept { return graph_; }
  Status launch(CUstream stream) noexcept;
  // New operations for a node of insert_mem_ops; takes effect from the next launch on.
  Status update(CUgraphNode node, std::span<MemoryOperation> operations) noexcept;

 private:
  friend class GraphChain;
  Graph(DevicePtr device, CUgraph graph, CUgraphExec executable, bool owns_graph) noexcept
      : device_{std::move(device)},
        graph_{graph},
        executable_{executable},
        owns_graph_{owns_graph} {}

  DevicePtr device_;
  CUgraph graph_;
  CUgraphExec executable_;
  bool owns_graph_;
};

// A graph that is made node by node, each after the one before: what no capture gives, because a
// stream cannot be captured into a condition. After an error it is of no use.
class GraphChain {
 public:
  static Result<std::unique_ptr<GraphChain>> create(DevicePtr device) noexcept;
  ~GraphChain();
  GraphChain(const GraphChain&) = delete;
  GraphChain& operator=(const GraphChain&) = delete;

  CUgraph get() const noexcept { return graph_; }
  Result<CUgraphNode> add_mem_ops(std::span<MemoryOperation> operations) noexcept;
  // One thread of `kernel`. The driver copies the arguments now.
  Status add_kernel(CUkernel kernel, void** arguments) noexcept;
  // A condition that is 0 whenever the graph is launched. Unavailable before CUDA 12.3.
  Result<ConditionHandle> make_condition() noexcept;
  // Runs a clone of `body` if the condition is not 0 by then. The body may hold kernels, copies and
  // fills, of the device's context, but no memory operations: instantiate() would refuse it.
  Status add_if(ConditionHandle condition, CUgraph body) noexcept;
  // The graph goes to what is returned.
  Result<std::unique_ptr<Graph>> instantiate() noexcept;

 private:
  GraphChain(DevicePtr device, CUgraph graph) noexcept
      : device_{std::move(device)}, graph_{graph} {}
  std::size_t last_count() const noexcept { return last_ == nullptr ? 0 : 1; }

  DevicePtr device_;
  CUgraph graph_;
  CUgraphNode last_{nullptr};
};

}  // namespace rose::driver
