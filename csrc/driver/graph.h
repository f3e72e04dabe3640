// Capture of a stream into a graph, and nodes that rose inserts between the engine's nodes.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "driver/device.h"

namespace rose::driver {

enum class CaptureState { kNone, kActive, kInvalidated };
Result<CaptureState> capture_state(const Device& device, CUstream stream) noexcept;

// Adds a batch of memory operations to the graph that `stream` is being captured into: after all
// captured nodes, and before all later ones. Returns the new node, for Graph::update.
// InvalidArgument if the stream is not being captured. After any other error the capture is
// unusable: end it and drop its graph.
Result<CUgraphNode> insert_mem_ops(const Device& device, CUstream stream,
                                   std::span<MemoryOperation> operations) noexcept;

// Owns an instantiated graph. One thread at a time.
class Graph {
 public:
  // Instantiates a captured graph, such as torch's raw_cuda_graph(). The graph's owner must keep it
  // during this object's lifetime. Memory that the graph allocates and does not free, as torch's
  // cudaMallocAsync allocator does, is freed at its next launch.
  static Result<std::unique_ptr<Graph>> instantiate(DevicePtr device, CUgraph captured) noexcept;
  // The thread that issues the work calls begin_capture(stream) and end_capture(stream). Other
  // threads, such as serving's, may call anything in the meantime. After an invalidated capture
  // end_capture fails and leaves the stream usable.
  static Status begin_capture(const Device& device, CUstream stream) noexcept;
  static Result<std::unique_ptr<Graph>> end_capture(DevicePtr device, CUstream stream) noexcept;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // The handle that cuStreamGetCaptureInfo returned during the capture.
  CUgraph get() const noexcept { return graph_; }
  Status launch(CUstream stream) noexcept;
  // Sets new operations of a node from insert_mem_ops, effective from the next launch.
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

// Builds a graph as a chain of nodes, including conditional nodes, which a plain capture of a
// stream does not record. After an error this object is unusable.
class GraphChain {
 public:
  static Result<std::unique_ptr<GraphChain>> create(DevicePtr device) noexcept;
  ~GraphChain();
  GraphChain(const GraphChain&) = delete;
  GraphChain& operator=(const GraphChain&) = delete;

  CUgraph get() const noexcept { return graph_; }
  Result<CUgraphNode> add_mem_ops(std::span<MemoryOperation> operations) noexcept;
  // Adds `kernel` with one thread. The driver copies the arguments during the call.
  Status add_kernel(CUkernel kernel, void** arguments) noexcept;
  // Makes a condition that each launch resets to 0. Unavailable before CUDA 12.3.
  Result<ConditionHandle> make_condition() noexcept;
  // Adds a clone of `body` that runs if the condition is not 0 when a launch reaches the node. The
  // body may contain kernels, copies and fills of the device's context. With stream memory
  // operations in the body, instantiate() would fail.
  Status add_if(ConditionHandle condition, CUgraph body) noexcept;
  // The returned object owns the graph.
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
