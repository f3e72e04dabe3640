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
  // begin_capture(stream) ... end_capture(stream) by the thread that issues the work. What other
  // threads call meanwhile is not restricted: serving is in one of them. When the capture was
  // invalidated, end_capture fails and leaves the stream usable.
  static Status begin_capture(const Device& device, CUstream stream) noexcept;
  static Result<std::unique_ptr<Graph>> end_capture(DevicePtr device, CUstream stream) noexcept;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Status launch(CUstream stream) noexcept;
  // New operations for a node of insert_mem_ops; takes effect from the next launch on.
  Status update(CUgraphNode node, std::span<MemoryOperation> operations) noexcept;

 private:
  Graph(DevicePtr device, CUgraph graph, CUgraphExec executable) noexcept
      : device_{std::move(device)}, graph_{graph}, executable_{executable} {}

  DevicePtr device_;
  CUgraph graph_;
  CUgraphExec executable_;
};

}  // namespace rose::driver
