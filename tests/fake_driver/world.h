// The state of the fake driver: what exists, what streams still have to do, what went wrong.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "controls.h"
#include "driver/abi.h"

namespace fake {

using namespace rose::driver;

constexpr std::size_t kGranularity = std::size_t{2} << 20;
constexpr unsigned kMultiprocessors = 132;
constexpr int kSharedBytesMax = 227 << 10;  // of a CTA that may have more than 48 KiB
constexpr int kHighestPriority = -5;
// A poll that goes on for minutes shall not fill memory.
constexpr std::size_t kLogLines = 200'000;

// ---- what streams do

struct Batch {
  std::vector<MemoryOperation> operations;
  std::size_t done{0};
};
struct Record {
  CUevent event;
  std::uint64_t number;
};
struct Fill {
  DevicePointer at;
  unsigned value;
  std::size_t count;
};
struct Launch {
  CUkernel kernel;
  std::array<unsigned, 3> grid;
  std::array<unsigned, 3> block;
  unsigned shared_bytes;
  std::vector<std::uint64_t> arguments;
};
struct GraphRun;
struct Node;
// A graph in a node: a child graph, or the body of an IF node, which runs if its condition is not 0
// when its turn comes.
struct Nested {
  ConditionHandle condition{0};  // 0: none
  CUgraph body{nullptr};         // of an IF node, until it is instantiated
  std::shared_ptr<const std::vector<Node>> nodes{};
  std::shared_ptr<GraphRun> run{};
};
using Work = std::variant<Batch, Record, Fill, Launch, Nested, std::shared_ptr<GraphRun>>;

struct Node {
  CUgraphNode id;
  std::vector<CUgraphNode> after;
  Work work;
};
// A node runs when those it comes after have run: a node that nothing waits for delays nothing.
struct GraphRun {
  std::vector<Node> nodes;
  std::map<ConditionHandle, unsigned> at_launch{};  // what its conditions are when it begins
  std::set<CUgraphNode> done{};
  bool has_begun{false};
};

// ---- what exists

struct Capture {
  int status{kCaptureStatusActive};
  int mode{kCaptureGlobal};
  std::thread::id thread;
  CUgraph graph{nullptr};
  std::vector<CUgraphNode> last{};
  std::vector<GraphEdge> edges{};
};
struct Stream {
  CUcontext context{nullptr};
  int priority{0};
  std::deque<Work> queue;
  std::optional<Capture> capture;
  bool is_held{false};
  bool is_destroyed{false};  // what is queued still runs
};
struct Event {
  CUcontext context{nullptr};
  bool has_timing{true};
  bool is_captured{false};
  std::uint64_t recorded{0};
  std::uint64_t done{0};
  std::int64_t time_ns{0};
};
struct Graph {
  std::vector<Node> nodes;
  bool is_captured{false};  // the capture's, not yet the caller's
  bool is_body{false};      // of an IF node: the driver's own, gone with the graph it is in
  std::map<ConditionHandle, unsigned> at_launch{};
};
struct Executable {
  std::vector<Node> nodes;
  std::map<ConditionHandle, unsigned> at_launch;
};
struct Kernel {
  CUlibrary library{nullptr};
  std::string name;
  bool is_loaded{false};
  int shared_bytes_max{48 << 10};
};
struct Allocation {
  int fd{-1};
  std::size_t size_bytes{0};
  bool can_export{false};
  std::size_t* used_bytes{nullptr};  // of its device; null for what was imported
  ~Allocation();
};
struct Mapped {
  std::size_t size_bytes{0};
  std::shared_ptr<Allocation> memory;
  bool has_access{false};
};
struct Registered {
  std::size_t size_bytes{0};
  bool is_mapped{false};
};

struct Failure {
  std::string name;
  int nth{0};  // 0: none is pending
  Answer code{kSuccess};
};
struct OnKernel {
  FakeKernel run{nullptr};
  void* context{nullptr};
};

// One for the process, behind one mutex. Recursive: what runs for a kernel may call the driver.
class World {
 public:
  static World& get();

  std::recursive_mutex mutex;
  std::map<CUstream, Stream> streams;  // the default stream, null, is always there
  std::map<CUevent, Event> events;
  std::map<CUgraph, Graph> graphs;
  std::map<CUgraphExec, Executable> executables;
  std::map<ConditionHandle, unsigned> conditions;
  std::map<CUgraph, std::deque<CUgraph>> bodies;  // of the IF nodes of a graph
  std::set<CUlibrary> libraries;
  std::map<CUkernel, Kernel> kernels;
  std::map<DeviceOrdinal, int> retains;
  std::map<MemoryHandle, std::shared_ptr<Allocation>> allocations;
  std::map<DevicePointer, std::size_t> reservations;
  std::map<DevicePointer, Mapped> mappings;
  std::map<const std::byte*, Registered> registered;
  std::size_t used_bytes{0};

  bool is_initialised{false};
  int devices{1};
  int version{13000};
  std::size_t memory_bytes{std::size_t{8} << 30};
  std::size_t launch_queue{0};     // pieces of work that a stream holds before it blocks; 0: any
  bool is_launch_blocking{false};  // CUDA_LAUNCH_BLOCKING
  bool is_eager{false};            // CUDA_MODULE_LOADING
  unsigned blocked{0};             // threads that wait in a launch
  std::map<int, int> attributes;
  std::vector<int> uuids;  // last byte of each device's UUID; of the others its ordinal
  std::set<std::string> missing;
  Failure failure;
  std::map<std::string, std::vector<std::size_t>> argument_sizes;
  std::map<std::string, OnKernel> on_kernel;
  std::vector<std::string> log;
  std::map<std::string, unsigned> calls;
  std::vector<std::string> executed;
  std::vector<std::string> faults;

  void reset();
  // A handle that was never given before.
  std::uintptr_t next() { return next_ += 16; }
  // Writes the fault down and answers `code`.
  Answer fault(std::string what, Answer code);
  std::string live() const;
  // Whether the next call of `name` shall fail, and how.
  std::optional<Answer> due_failure(const char* name);

  CUcontext context_of(DeviceOrdinal device) const;
  // Null when it was never made or is destroyed.
  Stream* find_stream(CUstream handle);
  bool is_context(CUcontext context) const;
  // Whether the device may touch these bytes.
  bool is_accessible(DevicePointer at, std::size_t size_bytes) const;

  // A call that captures forbid: invalidates those that forbid it to this thread. True if one did.
  bool spoil_captures();

  // Queues work, or puts it into the graph that is being captured.
  Answer issue(CUstream stream, Work work);
  CUgraphNode add_node(CUgraph graph, std::vector<CUgraphNode> after, Work work);
  // The graph of a capture goes with it.
  void end_capture(Stream& stream, bool keep_graph);
  void pump();

 private:
  World();
  bool run(Work& work, CUstream stream);  // whether it is done
  bool run(Batch& batch);
  bool run(GraphRun& graph, CUstream stream);
  bool run(Nested& nested, CUstream stream);
  bool run_operation(const MemoryOperation& operation);
  void run_kernel(const Launch& launch, CUstream stream);

  std::uintptr_t next_{0x1000};
  bool is_pumping_{false};
  bool has_moved_{false};
};

// The contexts that are current in this thread, the last on top, and whether a push was just made
// to fail: then giving back without a context is all that can be done.
struct ThreadContexts {
  std::vector<CUcontext> stack;
  bool is_push_refused{false};
  int capture_mode{kCaptureGlobal};  // how captures bind this thread
};
ThreadContexts& contexts();

std::string hex(std::uintptr_t value);
template <typename T>
std::string hex(T* value) {
  return hex(reinterpret_cast<std::uintptr_t>(value));
}
std::string describe(const MemoryOperation& operation);

}  // namespace fake
