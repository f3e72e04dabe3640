#include "driver/graph.h"

namespace rose::driver {

namespace {

// State of a capture. The driver owns the array `last`, which is valid until its next call.
struct Capture {
  int status{kCaptureStatusNone};
  CUgraph graph{nullptr};
  const CUgraphNode* last{nullptr};  // nodes that the next node will depend on
  std::size_t last_count{0};
};

Result<Capture> capture_of(const Device& device, CUstream stream) noexcept {
  Capture capture;
  std::uint64_t id = 0;
  // The edges are requested because the driver otherwise rejects a capture whose edges have data.
  const GraphEdge* edges = nullptr;
  ROSE_TRY(ROSE_CU(device.driver(), cuStreamGetCaptureInfo, stream, &capture.status, &id,
                   &capture.graph, &capture.last, &edges, &capture.last_count));
  return capture;
}

BatchMemOpNodeParams node_params(const Device& device,
                                 std::span<MemoryOperation> operations) noexcept {
  return {device.context(), static_cast<unsigned>(operations.size()), operations.data(), 0};
}

}  // namespace

Result<CaptureState> capture_state(const Device& device, CUstream stream) noexcept {
  const Current current{device};
  ROSE_TRY(current.status());
  const Result<Capture> capture = capture_of(device, stream);
  if (!capture.ok()) return capture.status();
  switch (capture.value().status) {
    case kCaptureStatusNone:
      return CaptureState::kNone;
    case kCaptureStatusActive:
      return CaptureState::kActive;
    default:
      return CaptureState::kInvalidated;
  }
}

Result<CUgraphNode> insert_mem_ops(const Device& device, CUstream stream,
                                   std::span<MemoryOperation> operations) noexcept {
  if (operations.empty())
    return Status::invalid_argument("the list of memory operations must not be empty");
  const Current current{device};
  ROSE_TRY(current.status());
  const Result<Capture> found = capture_of(device, stream);
  if (!found.ok()) return found.status();
  const Capture& capture = found.value();
  if (capture.status == kCaptureStatusNone) {
    return Status::invalid_argument("the stream is not being captured");
  }
  if (capture.status != kCaptureStatusActive) {
    return Status::unavailable("the capture was invalidated by an earlier call");
  }
  const BatchMemOpNodeParams params = node_params(device, operations);
  CUgraphNode node = nullptr;
  // The new edges have no data. Such an edge waits for all work of its source node, so it can
  // replace an edge that has data.
  ROSE_TRY(ROSE_CU(device.driver(), cuGraphAddBatchMemOpNode, &node, capture.graph, capture.last,
                   capture.last_count, &params));
  ROSE_TRY(ROSE_CU(device.driver(), cuStreamUpdateCaptureDependencies, stream, &node, nullptr, 1,
                   kSetCaptureDependencies));
  return node;
}

Status Graph::begin_capture(const Device& device, CUstream stream) noexcept {
  const Current current{device};
  ROSE_TRY(current.status());
  return ROSE_CU(device.driver(), cuStreamBeginCapture, stream, kCaptureThreadLocal);
}

Result<std::unique_ptr<Graph>> Graph::end_capture(DevicePtr device, CUstream stream) noexcept {
  const Current current{*device};
  ROSE_TRY(current.status());
  const Driver& driver = device->driver();
  CUgraph graph = nullptr;
  const Status ended = ROSE_CU(driver, cuStreamEndCapture, stream, &graph);
  CUgraphExec executable = nullptr;
  const Status made =
      ended.ok() ? ROSE_CU(driver, cuGraphInstantiateWithFlags, &executable, graph, 0) : ended;
  if (!made.ok()) {
    if (graph != nullptr) driver.entries().cuGraphDestroy(graph);
    return made;
  }
  return std::unique_ptr<Graph>{new Graph{device, graph, executable, true}};
}

Result<std::unique_ptr<Graph>> Graph::instantiate(DevicePtr device, CUgraph captured) noexcept {
  const Current current{*device};
  ROSE_TRY(current.status());
  CUgraphExec executable = nullptr;
  ROSE_TRY(ROSE_CU(device->driver(), cuGraphInstantiateWithFlags, &executable, captured,
                   kGraphFreesAtLaunch));
  return std::unique_ptr<Graph>{new Graph{device, captured, executable, false}};
}

// Running launches are not affected: the driver keeps their resources until they end.
Graph::~Graph() {
  const Current current{*device_};
  device_->driver().entries().cuGraphExecDestroy(executable_);
  if (owns_graph_) device_->driver().entries().cuGraphDestroy(graph_);
}

Status Graph::launch(CUstream stream) noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  return ROSE_CU(device_->driver(), cuGraphLaunch, executable_, stream);
}

Status Graph::update(CUgraphNode node, std::span<MemoryOperation> operations) noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  const BatchMemOpNodeParams params = node_params(*device_, operations);
  return ROSE_CU(device_->driver(), cuGraphExecBatchMemOpNodeSetParams, executable_, node, &params);
}

// ---- node by node

Result<std::unique_ptr<GraphChain>> GraphChain::create(DevicePtr device) noexcept {
  const Current current{*device};
  ROSE_TRY(current.status());
  CUgraph graph = nullptr;
  ROSE_TRY(ROSE_CU(device->driver(), cuGraphCreate, &graph, 0));
  return std::unique_ptr<GraphChain>{new GraphChain{device, graph}};
}

GraphChain::~GraphChain() {
  if (graph_ == nullptr) return;
  const Current current{*device_};
  device_->driver().entries().cuGraphDestroy(graph_);
}

Result<CUgraphNode> GraphChain::add_mem_ops(std::span<MemoryOperation> operations) noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  const BatchMemOpNodeParams params = node_params(*device_, operations);
  ROSE_TRY(ROSE_CU(device_->driver(), cuGraphAddBatchMemOpNode, &last_, graph_, &last_,
                   last_count(), &params));
  return last_;
}

Status GraphChain::add_kernel(CUkernel kernel, void** arguments) noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  const KernelNodeParams params{.function = nullptr,
                                .blocks_x = 1,
                                .blocks_y = 1,
                                .blocks_z = 1,
                                .threads_x = 1,
                                .threads_y = 1,
                                .threads_z = 1,
                                .shared_bytes = 0,
                                .arguments = arguments,
                                .extra = nullptr,
                                .kernel = kernel,
                                .context = device_->context()};
  return ROSE_CU(device_->driver(), cuGraphAddKernelNode, &last_, graph_, &last_, last_count(),
                 &params);
}

Result<ConditionHandle> GraphChain::make_condition() noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  ConditionHandle condition = 0;
  ROSE_TRY(ROSE_CU(device_->driver(), cuGraphConditionalHandleCreate, &condition, graph_,
                   device_->context(), 0, kConditionSetAtLaunch));
  return condition;
}

Status GraphChain::add_if(ConditionHandle condition, CUgraph body) noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  const Driver& driver = device_->driver();
  GraphNodeParams params{};
  params.type = kNodeConditional;
  params.conditional = {.handle = condition,
                        .kind = kConditionIf,
                        .size = 1,
                        .bodies = nullptr,
                        .context = device_->context()};
  ROSE_TRY(ROSE_CU(driver, cuGraphAddNode, &last_, graph_, &last_, nullptr, last_count(), &params));
  CUgraphNode inside = nullptr;
  return ROSE_CU(driver, cuGraphAddChildGraphNode, &inside, params.conditional.bodies[0], nullptr,
                 0, body);
}

Result<std::unique_ptr<Graph>> GraphChain::instantiate() noexcept {
  const Current current{*device_};
  ROSE_TRY(current.status());
  CUgraphExec executable = nullptr;
  ROSE_TRY(ROSE_CU(device_->driver(), cuGraphInstantiateWithFlags, &executable, graph_, 0));
  CUgraph graph = std::exchange(graph_, nullptr);
  return std::unique_ptr<Graph>{new Graph{device_, graph, executable, true}};
}

}  // namespace rose::driver
