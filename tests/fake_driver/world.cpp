#include "world.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace fake {

namespace {

std::uint32_t load(DevicePointer at) {
  return std::atomic_ref{*std::bit_cast<std::uint32_t*>(at)}.load(std::memory_order_acquire);
}

bool is_satisfied(const MemoryOperation& operation) {
  const std::uint32_t found = load(operation.address);
  switch (operation.flags & 3u) {
    case kWaitGeq:
      return static_cast<std::int32_t>(found - operation.value) >= 0;
    case 1:
      return found == operation.value;
    case kWaitAnd:
      return (found & operation.value) != 0;
    default:
      return ~(found | operation.value) != 0;
  }
}

template <typename Take>
void each_setting(const char* variable, Take take) {
  const char* text = std::getenv(variable);
  std::istringstream all{text == nullptr ? "" : text};
  for (std::string one; std::getline(all, one, ',');) take(one);
}

}  // namespace

Allocation::~Allocation() {
  if (fd >= 0) ::close(fd);
  if (used_bytes != nullptr) *used_bytes -= size_bytes;
}

World& World::get() {
  static World* world = new World;  // never destroyed: threads may outlive main
  return *world;
}

World::World() {
  streams[nullptr];
  each_setting("FAKECUDA_DEVICES", [&](const std::string& one) { devices = std::stoi(one); });
  each_setting("FAKECUDA_VERSION", [&](const std::string& one) { version = std::stoi(one); });
  each_setting("FAKECUDA_MISSING", [&](const std::string& one) { missing.insert(one); });
  each_setting("FAKECUDA_ATTRIBUTES", [&](const std::string& one) {
    attributes[std::stoi(one)] = std::stoi(one.substr(one.find('=') + 1));
  });
  each_setting("FAKECUDA_UUIDS", [&](const std::string& one) { uuids.push_back(std::stoi(one)); });
  each_setting("CUDA_LAUNCH_BLOCKING",
               [&](const std::string& one) { is_launch_blocking = one != "0"; });
  each_setting("CUDA_MODULE_LOADING", [&](const std::string& one) { is_eager = one == "EAGER"; });
  each_setting("FAKECUDA_FAIL", [&](const std::string& one) {
    const std::size_t at = one.find('@');
    failure = {one.substr(0, at), std::stoi(one.substr(at + 1)),
               std::stoi(one.substr(one.find('=') + 1))};
  });
}

void World::reset() {
  devices = 1;
  version = 13000;
  memory_bytes = std::size_t{8} << 30;
  launch_queue = 0;
  is_launch_blocking = false;
  failure = {};
  for (auto& [handle, stream] : streams) stream.is_held = false;
  attributes.clear();
  missing.clear();
  argument_sizes.clear();
  on_kernel.clear();
  log.clear();
  calls.clear();
  executed.clear();
  faults.clear();
}

Answer World::fault(std::string what, Answer code) {
  faults.push_back(std::move(what));
  return code;
}

std::string World::live() const {
  std::string text;
  const auto count = [&text](const char* kind, std::size_t number) {
    if (number > 0) text += std::string{kind} + " " + std::to_string(number) + "\n";
  };
  std::size_t contexts = 0;
  for (const auto& [device, number] : retains) contexts += static_cast<std::size_t>(number);
  count("contexts", contexts);
  count("handles", allocations.size());
  count("reservations", reservations.size());
  count("mappings", mappings.size());
  count("registered", registered.size());
  count("streams", static_cast<std::size_t>(std::ranges::count_if(streams, [](const auto& one) {
          return one.first != nullptr && !one.second.is_destroyed;
        })));
  count("captures", static_cast<std::size_t>(std::ranges::count_if(
                        streams, [](const auto& one) { return one.second.capture.has_value(); })));
  count("events", events.size());
  count("graphs", static_cast<std::size_t>(std::ranges::count_if(
                      graphs, [](const auto& one) { return !one.second.is_body; })));
  count("executables", executables.size());
  count("libraries", libraries.size());
  return text;
}

std::optional<Answer> World::due_failure(const char* name) {
  if (failure.nth <= 0 || (failure.name != "*" && failure.name != name)) return {};
  if (--failure.nth > 0) return {};
  return failure.code;
}

CUcontext World::context_of(DeviceOrdinal device) const {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(0x100 + 16 * device));
}

Stream* World::find_stream(CUstream handle) {
  const auto found = streams.find(handle);
  return found == streams.end() || found->second.is_destroyed ? nullptr : &found->second;
}

bool World::is_context(CUcontext context) const {
  return std::ranges::any_of(
      retains, [&](const auto& one) { return one.second > 0 && context_of(one.first) == context; });
}

bool World::is_accessible(DevicePointer at, std::size_t size_bytes) const {
  const DevicePointer end = at + size_bytes;
  for (const auto& [base, range] : registered) {
    const auto start = std::bit_cast<DevicePointer>(base);
    if (range.is_mapped && at >= start && end <= start + range.size_bytes) return true;
  }
  while (at < end) {  // a range may go over mappings that touch
    auto next = mappings.upper_bound(at);
    if (next == mappings.begin()) return false;
    const auto& [base, mapped] = *--next;
    if (!mapped.has_access || at >= base + mapped.size_bytes) return false;
    at = base + mapped.size_bytes;
  }
  return true;
}

bool World::spoil_captures() {
  const int mode = contexts().capture_mode;
  bool has_spoiled = false;
  for (auto& [handle, stream] : streams) {
    if (!stream.capture || mode == kCaptureRelaxed) continue;
    const bool is_own = stream.capture->thread == std::this_thread::get_id();
    const bool binds = is_own ? stream.capture->mode != kCaptureRelaxed
                              : stream.capture->mode == kCaptureGlobal && mode == kCaptureGlobal;
    if (!binds) continue;
    stream.capture->status = kCaptureStatusInvalidated;
    has_spoiled = true;
  }
  return has_spoiled;
}

// ---- streams

Answer World::issue(CUstream handle, Work work) {
  Stream* stream = find_stream(handle);
  if (stream == nullptr) return fault("work for unknown stream " + hex(handle), kInvalidHandle);
  if (!stream->capture) {
    stream->queue.push_back(std::move(work));
    return kSuccess;
  }
  Capture& capture = *stream->capture;
  if (capture.status != kCaptureStatusActive) return 901;
  capture.last = {add_node(capture.graph, capture.last, std::move(work))};
  return kSuccess;
}

CUgraphNode World::add_node(CUgraph graph, std::vector<CUgraphNode> after, Work work) {
  const auto node = reinterpret_cast<CUgraphNode>(next());
  graphs[graph].nodes.push_back({node, std::move(after), std::move(work)});
  return node;
}

void World::end_capture(Stream& stream, bool keep_graph) {
  const CUgraph graph = stream.capture->graph;
  if (keep_graph) {
    graphs[graph].is_captured = false;
  } else {
    graphs.erase(graph);
  }
  stream.capture.reset();
}

void World::pump() {
  if (is_pumping_) return;
  is_pumping_ = true;
  do {
    has_moved_ = false;
    std::vector<CUstream> handles;  // a kernel may make and end streams
    for (const auto& [handle, stream] : streams) handles.push_back(handle);
    for (const CUstream handle : handles) {
      Stream& stream = streams[handle];
      while (!stream.is_held && !stream.queue.empty() && run(stream.queue.front(), handle)) {
        stream.queue.pop_front();
      }
      if (stream.is_destroyed && stream.queue.empty()) streams.erase(handle);
    }
  } while (has_moved_);
  is_pumping_ = false;
}

bool World::run(Work& work, CUstream stream) {
  if (auto* batch = std::get_if<Batch>(&work)) return run(*batch);
  if (auto* graph = std::get_if<std::shared_ptr<GraphRun>>(&work)) return run(**graph, stream);
  if (auto* nested = std::get_if<Nested>(&work)) return run(*nested, stream);
  has_moved_ = true;
  if (const auto* record = std::get_if<Record>(&work)) {
    const auto found = events.find(record->event);
    if (found == events.end()) return true;  // destroyed meanwhile, as it may be
    found->second.done = record->number;
    found->second.time_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  } else if (const auto* fill = std::get_if<Fill>(&work)) {
    if (!is_accessible(fill->at, 4 * fill->count)) {
      fault("a memset reached memory that is gone: " + hex(fill->at), kSuccess);
    } else {
      std::fill_n(std::bit_cast<std::uint32_t*>(fill->at), fill->count, fill->value);
    }
  } else if (const auto* launch = std::get_if<Launch>(&work)) {
    run_kernel(*launch, stream);
  }
  return true;
}

bool World::run(Batch& batch) {
  while (batch.done < batch.operations.size()) {
    if (!run_operation(batch.operations[batch.done])) return false;
    ++batch.done;
    has_moved_ = true;
  }
  return true;
}

bool World::run_operation(const MemoryOperation& operation) {
  if (!is_accessible(operation.address, sizeof operation.value)) {
    fault("a memory operation reached memory that is gone: " + hex(operation.address), kSuccess);
    return true;
  }
  if (operation.operation == kWaitValue32) return is_satisfied(operation);
  std::atomic_ref{*std::bit_cast<std::uint32_t*>(operation.address)}.store(
      operation.value, std::memory_order_release);
  return true;
}

bool World::run(Nested& nested, CUstream stream) {
  if (nested.run == nullptr) {
    has_moved_ = true;
    if (nested.condition != 0 && conditions[nested.condition] == 0) return true;
    nested.run = std::make_shared<GraphRun>(GraphRun{*nested.nodes});
  }
  return run(*nested.run, stream);
}

bool World::run(GraphRun& graph, CUstream stream) {
  if (!graph.has_begun) {
    graph.has_begun = true;
    for (const auto& [condition, value] : graph.at_launch) conditions[condition] = value;
  }
  bool is_done = true;
  for (Node& node : graph.nodes) {
    if (graph.done.contains(node.id)) continue;
    const bool is_due =
        std::ranges::all_of(node.after, [&](CUgraphNode one) { return graph.done.contains(one); });
    if (is_due && run(node.work, stream)) {
      graph.done.insert(node.id);
    } else {
      is_done = false;
    }
  }
  return is_done;
}

void World::run_kernel(const Launch& launch, CUstream stream) {
  const auto found = kernels.find(launch.kernel);
  if (found == kernels.end()) {
    fault("a kernel ran after its library was unloaded", kSuccess);
    return;
  }
  std::ostringstream text;
  text << found->second.name;
  for (const auto& [name, three] : {std::pair{"grid", launch.grid}, {"block", launch.block}}) {
    text << ' ' << name << ' ' << three[0] << ' ' << three[1] << ' ' << three[2];
  }
  text << " shared " << launch.shared_bytes << " stream " << hex(stream);
  if (!launch.arguments.empty()) text << " arguments";
  for (const std::uint64_t one : launch.arguments) text << ' ' << hex(one);
  executed.push_back(text.str());
  const auto act = on_kernel.find(found->second.name);
  if (act == on_kernel.end() || act->second.run == nullptr) return;
  const OnKernel what = act->second;
  what.run(launch.arguments.data(), static_cast<unsigned>(launch.arguments.size()), what.context);
}

// ---- words

ThreadContexts& contexts() {
  thread_local ThreadContexts mine;
  return mine;
}

std::string hex(std::uintptr_t value) {
  std::ostringstream text;
  text << "0x" << std::hex << value;
  return text.str();
}

std::string describe(const MemoryOperation& operation) {
  static constexpr const char* kRelations[] = {">=", "==", "&", "nor"};
  const bool is_wait = operation.operation == kWaitValue32;
  return std::string{is_wait ? "wait" : "write"} + " " + hex(operation.address) + " " +
         (is_wait ? kRelations[operation.flags & 3u] : "=") + " " + std::to_string(operation.value);
}

}  // namespace fake
