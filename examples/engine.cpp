// A C++ engine that lends to rollouts without Python: `engine LOG`.
//
// This thread serves requests; its steps sleep instead of running a model. A second thread runs
// rollouts: each segment starts under a certificate, and writes to a borrowed block.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "coserving/lending_device.h"
#include "memory/host_memfd.h"

using namespace rose;

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return result.take();
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}

void work() { std::this_thread::sleep_for(std::chrono::milliseconds{1}); }

int main(int, char** arguments) {
  constexpr Nanoseconds kMs = 1'000'000;
  const slo::Features decode{1, 64, 0};
  const slo::Features prefill{0, 64, 64};  // the longest prompt, in one step
  const auto device = must(coserving::LendingDevice::create(
      must(memory::Pool::create(std::make_unique<memory::HostMemfd>(), {4096, 16, 2})),
      {.targets = {.ttft_ms = 1000,
                   .tpot_ms = 500,
                   .epsilon = 0.1,
                   .signal_ms = 1,
                   .blocking_ms = 100,
                   .heartbeat_ttl_ns = 500 * kMs,
                   .max_segments = 8,
                   .burst_requests = 1,
                   .revoke_ms = 100},
       .log_path = arguments[1],
       .reserve_slabs = 4,
       .serving_block_bytes = 1024,
       .borrower_block_bytes = 512,
       .block_tokens = 16,
       .next = {.largest_step = decode, .largest_chunk = prefill},
       .step_prior_ms = {2, 0, 0, 0, 0},
       .segment_prior_ms = 2}));
  compute::HostGate& gate = device->gate();
  const auto step = [&](const slo::Features& batch) {
    const auto begun = device->steps().begin(std::nullopt, true);
    const Nanoseconds blocked_ns = begun.is_blocked ? device->wait_parked().waited_ns : 0;
    const Nanoseconds began_ns = BootClock{}.now_ns();
    work();
    must(device->steps().end(
        {batch, began_ns, 0, static_cast<double>(blocked_ns) / kMs, begun.passed}));
  };
  for (const slo::Features& shape : {decode, prefill}) {  // evidence before promises
    while (must(device->model().evidence(shape)).missing > 0) step(shape);
  }
  if (!device->start().ok()) return 1;

  const auto lent = must(device->lend(8, 60'000 * kMs)).grant.slabs.size();
  std::atomic<bool> is_over{false};
  std::thread borrower{[&] {
    memory::BlockAllocator& blocks = device->borrower_blocks();
    memory::BlockId block{};
    if (!blocks.alloc({&block, 1})) return;
    while (!is_over.load()) {
      gate.begin_step();
      for (int i = 0; i < 4 && gate.pass(5 * kMs) == compute::Verdict::kPassed; ++i) {
        std::memset(device->arbiter().pool().data() + blocks.grid().offset_of(block), i, 512);
        work();
      }
      gate.leave();
      gate.end_step();
    }
    static_cast<void>(blocks.free({&block, 1}));
  }};
  for (int request = 0; request < 20; ++request) {
    const std::uint32_t slot = device->state().arrived(64);  // closes the gate
    for (int token = 0; token < 5; ++token) {
      step(token == 0 ? prefill : decode);
      device->steps().emitted({&slot, 1}, false);
    }
    device->state().finished(slot);
    for (int idle = 0; idle < 10; ++idle) {
      device->state().beat();  // the engine's own loop is the heartbeat
      work();
    }
  }
  is_over.store(true);
  borrower.join();
  std::printf("%zu slabs and %u segments lent, %d slabs came back\n", lent, gate.passed(),
              must(device->take_back(8, 100 * kMs)).returned);
  return device->close().ok() ? 0 : 1;
}
