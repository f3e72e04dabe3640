// Every scenario of the driver room and CudaVmm with its n-th driver call failing, for every n.
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "check.h"
#include "compute/stream_gate.h"
#include "driver/fixture.h"
#include "driver/graph.h"
#include "driver/kernel_library.h"
#include "driver/stream.h"

using namespace rose;
using namespace rose::driver;
using namespace rose::test;
using memory::CudaVmm;
using memory::PageHandle;
using memory::Pool;
using memory::VaRange;

namespace {

// ---- what is done; each is whole by itself and gives everything back

Result<DevicePtr> open() {
  Result<DriverPtr> driver = Driver::open();
  if (!driver.ok()) return driver.status();
  return Device::open(driver.take(), 0);
}

#define TAKE(name, expression)                            \
  auto name##_result = (expression);                      \
  if (!name##_result.ok()) return name##_result.status(); \
  auto name = name##_result.take()

Status use_device() {
  TAKE(driver, Driver::open());
  TAKE(count, driver->device_count());
  CHECK_EQ(count, 1);
  ROSE_TRY(device_facts(*driver, 0).status());
  ROSE_TRY(driver->loads_lazily().status());
  TAKE(device, Device::open(driver, 0));
  ROSE_TRY(device->priority_range().status());
  ROSE_TRY(device->memory_info().status());
  return {};
}

Status use_stream() {
  TAKE(device, open());
  TAKE(serving, Stream::create(device, StreamPriority::kHighest));
  TAKE(rollout, Stream::create(device, StreamPriority::kLowest));
  ROSE_TRY(serving->priority().status());
  ROSE_TRY(rollout->is_idle().status());
  return serving->wait(0);
}

Status use_events() {
  TAKE(device, open());
  TAKE(stream, Stream::create(device, StreamPriority::kLowest));
  TAKE(start, Event::create(device, true));
  TAKE(end, Event::create(device, true));
  TAKE(plain, Event::create(device, false));
  ROSE_TRY(start->record(stream->get()));
  ROSE_TRY(end->record(stream->get()));
  ROSE_TRY(end->is_done().status());
  ROSE_TRY(end->since(*start).status());
  return {};
}

Status use_library() {
  TAKE(device, open());
  TAKE(stream, Stream::create(device, StreamPriority::kLowest));
  TAKE(library, KernelLibrary::create(device, Fatbin{"scale", kCode}));
  TAKE(kernel, library->kernel("scale_kernel"));
  constexpr int kShared = 200 << 10;
  ROSE_TRY(library->allow_shared(kernel, kShared));
  return library->launch(kernel, {.blocks = 2, .threads = 32, .shared_bytes = kShared},
                         stream->get(), 7, 8.0F);
}

Status fill_capture(const Device& device, CUstream stream, std::span<MemoryOperation> operations,
                    CUgraphNode& node) {
  TAKE(state, capture_state(device, stream));
  CHECK(state == CaptureState::kActive);
  TAKE(inserted, insert_mem_ops(device, stream, operations));
  node = inserted;
  return {};
}

Status use_graph() {
  TAKE(device, open());
  TAKE(words, create_words(device));
  TAKE(stream, Stream::create(device, StreamPriority::kLowest));
  std::array operations{write(address_of(words, 0), 1)};
  CUgraphNode node = nullptr;
  ROSE_TRY(Graph::begin_capture(*device, stream->get()));
  const Status filled = fill_capture(*device, stream->get(), operations, node);
  Result<std::unique_ptr<Graph>> graph = Graph::end_capture(device, stream->get());
  ROSE_TRY(filled);
  if (!graph.ok()) return graph.status();
  ROSE_TRY(graph.value()->launch(stream->get()));
  return graph.value()->update(node, operations);
}

Status use_pool() {
  TAKE(device, open());
  TAKE(backend, CudaVmm::create(device));
  const memory::PoolShape shape{.slab_bytes = kPage, .slab_count = 2, .header_slabs = 1};
  return Pool::create(std::move(backend), shape, kPage).status();
}

Status map_both(CudaVmm& backend, VaRange range, PageHandle first, PageHandle second) {
  ROSE_TRY(backend.map(range.base, first));
  const VaRange one{range.base, kPage};
  const Status mapped = backend.map(range.base + kPage, second);
  if (mapped.ok()) backend.unmap({range.base + kPage, kPage});
  backend.unmap(one);
  return mapped;
}

Status share_both(CudaVmm& owner, CudaVmm& other, PageHandle handle) {
  TAKE(fd, owner.export_fd(handle));
  TAKE(same, other.import_fd(std::move(fd), kPage));
  Result<VaRange> range = owner.reserve(2 * kPage);
  Status shared = range.status();
  if (range.ok()) {
    shared = map_both(owner, range.value(), handle, same);
    owner.release_range(range.value());
  }
  other.release(same);
  return shared;
}

Status use_shared_memory() {
  TAKE(device, open());
  TAKE(owner, CudaVmm::create(device));
  TAKE(other, CudaVmm::create(device));
  TAKE(handle, owner->create(kPage));
  const Status shared = share_both(*owner, *other, handle);
  owner->release(handle);
  return shared;
}

// A graph made node by node.
Status use_chain() {
  TAKE(device, open());
  TAKE(stream, Stream::create(device, StreamPriority::kLowest));
  TAKE(library, KernelLibrary::create(device, Fatbin{.name = "gate", .bytes = kCode}));
  TAKE(kernel, library->kernel("branch_kernel"));
  ROSE_TRY(Graph::begin_capture(*device, stream->get()));
  TAKE(body, Graph::end_capture(device, stream->get()));
  TAKE(chain, GraphChain::create(device));
  TAKE(condition, chain->make_condition());
  void* no_arguments = nullptr;
  ROSE_TRY(chain->add_kernel(kernel, &no_arguments));
  ROSE_TRY(chain->add_if(condition, body->get()));
  TAKE(graph, chain->instantiate());
  TAKE(adopted, Graph::instantiate(device, body->get()));
  ROSE_TRY(graph->launch(stream->get()));
  ROSE_TRY(adopted->launch(stream->get()));
  return stream->wait(10'000'000'000);
}

struct Scenario {
  std::string_view name;
  Status (*run)();
};
constexpr Scenario kScenarios[] = {
    {"device", use_device}, {"stream", use_stream},
    {"events", use_events}, {"library", use_library},
    {"graph", use_graph},   {"chain", use_chain},
    {"pool", use_pool},     {"shared_memory", use_shared_memory},
};

// ---- the law

std::vector<std::string> called() {
  std::vector<std::string> names;
  std::string line;
  for (const char* at = fake().log(); *at != '\0'; ++at) {
    if (*at != '\n') {
      line += *at;
      continue;
    }
    if (line.front() != ' ') names.push_back(line.substr(0, line.find('(')));
    line.clear();
  }
  return names;
}

// A failure in a destructor cannot be reported.
constexpr bool is_silent(std::string_view call) {
  constexpr std::string_view kSilent[] = {
      "cuDevicePrimaryCtxRelease",
      "cuCtxPopCurrent",
      "cuMemAddressFree",
      "cuMemRelease",
      "cuMemUnmap",
      "cuStreamDestroy",
      "cuEventDestroy",
      "cuLibraryUnload",
      "cuGraphExecDestroy",
      "cuGraphDestroy",
  };
  return std::ranges::find(kSilent, call) != std::end(kSilent);
}

// Whether the failed call was a destructor's push or exchange of the capture mode before a release,
// or the exchange that restores the mode.
bool is_silent_push(std::span<const std::string> calls, std::size_t n) {
  const bool is_exchange = calls[n - 1] == "cuThreadExchangeStreamCaptureMode";
  if (is_exchange && calls[n - 2] != "cuCtxPushCurrent") return true;
  if (!is_exchange && calls[n - 1] != "cuCtxPushCurrent") return false;
  const auto next = std::ranges::find_if(
      calls.subspan(n), [](const std::string& one) { return !one.starts_with("cuGetError"); });
  return next != calls.end() && *next != "cuCtxPopCurrent" && is_silent(*next);
}

Status run_with_foreign_context(const Scenario& scenario, int fail_call) {
  fake().reset();
  fake().push_foreign();
  fake().fail("*", fail_call, kOutOfMemory);
  const Status status = scenario.run();
  CHECK(fake().is_foreign_current() != 0);
  fake().pop_foreign();
  check_clean();
  return status;
}

// The number of calls of a successful scenario.
int check_failures(const Scenario& scenario) {
  for (int n = 1;; ++n) {
    const Status status = run_with_foreign_context(scenario, n);
    if (fake().is_fail_pending() != 0) {
      CHECK_EQ(says(status), "");
      return n - 1;
    }
    const std::vector<std::string> calls = called();
    const std::string& failed = calls[static_cast<std::size_t>(n) - 1];
    if (is_silent(failed) || is_silent_push(calls, static_cast<std::size_t>(n))) {
      continue;
    }
    std::fprintf(stderr, "  %s, call %d: %s\n", std::string{scenario.name}.c_str(), n,
                 failed.c_str());
    CHECK(!status.ok());
    CHECK(status.message().starts_with(failed + ": "));
    CHECK(status.code() == (failed == "cuInit" ? Code::kUnavailable : Code::kOutOfMemory));
  }
}

}  // namespace

TEST(nothing_leaks_when_the_nth_driver_call_fails) {
  for (const Scenario& scenario : kScenarios) CHECK(check_failures(scenario) > 5);
}

// A segment behind a gate. It is not a scenario, because it continues without timing when an event
// fails; tests/cpp/compute/stream_gate_test.cpp fails its calls one by one.
Status use_gate() {
  TAKE(device, open());
  TAKE(stream, Stream::create(device, StreamPriority::kLowest));
  TAKE(made, compute::HostGate::create(std::make_shared<BootClock>()));
  const std::shared_ptr<compute::HostGate> gate{std::move(made)};
  TAKE(borrower,
       compute::StreamGate::create(device, gate, stream->get(), compute::GateKind::kMemop));
  gate->set_credit(1);
  CHECK(gate->open(gate->close_epoch()));
  borrower->begin_step();
  constexpr Nanoseconds kLong = 10'000'000'000;
  TAKE(verdict, borrower->pass(kLong));
  CHECK(verdict == compute::Verdict::kPassed);
  CHECK(borrower->settle(kLong) == compute::Verdict::kPassed);
  borrower->end_step();
  return {};
}

TEST(every_entry_is_called) {
  fake().reset();
  std::vector<std::string_view> uncalled;
  for (const Scenario& scenario : kScenarios) CHECK(scenario.run().ok());
  CHECK(use_gate().ok());
  {
    // The text of an error is requested only for an error.
    fake().fail("cuDeviceGetCount", 1, kOutOfMemory);
    CHECK(!use_device().ok());
  }
#define NOTE_UNCALLED(name, version, need, arguments) \
  if (fake().calls(#name) == 0) uncalled.push_back(#name);
  ROSE_CUDA_ENTRIES(NOTE_UNCALLED)
#undef NOTE_UNCALLED
  for (const std::string_view name : uncalled) {
    std::fprintf(stderr, "  nobody calls %s\n", std::string{name}.c_str());
  }
  CHECK(uncalled.empty());
}
