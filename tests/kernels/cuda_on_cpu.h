// Runs the source of a kernel on a CPU, unchanged: include this, then the .cu file.
//
// The threads of a CTA are fibers of one host thread, so a run is deterministic and repeats.
// Between two barriers they run one after another, in an order that the caller chooses: what two
// orders answer differently is a race. A barrier that not all of its threads reach is an error, and
// so is one that they reach at different lines. Shared memory is poisoned before each CTA.
//
// Built with ThreadSanitizer it finds races whatever the order, as race_edges.h says. Then each CTA
// is a host thread with shared memory of its own, unpoisoned, and CTAs run at the same time.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <deque>
#include <thread>

#include "race_edges.h"
#else
#define CUDA_ON_CPU_UNSEEN
#endif

namespace cuda_on_cpu {

constexpr unsigned kWarp = 32;
constexpr std::size_t kStackBytes = 128 << 10;
constexpr unsigned char kPoison = 0xA5;

enum class Order { kForward, kBackward, kShuffled };

struct Index {
  unsigned x{0}, y{0}, z{0};
};

// Where a fiber waits: nowhere, or at a line for the CTA or for the lanes of a mask.
enum class Wait { kNone, kBlock, kWarp, kEnd };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  void* fake_stack{nullptr};
#if defined(__SANITIZE_THREAD__)
  void* seen{nullptr};   // the sanitizer's name of it
  unsigned barriers{0};  // of its CTA that it came to
  unsigned meetings{0};  // of its warp
#endif
  unsigned thread{0};
  Wait wait{Wait::kNone};
  int line{0};
  unsigned mask{0};
  std::uint64_t given{0};
  unsigned source{0};  // the lane whose number a shuffle takes; itself where there is none
  std::uint64_t got{0};
  unsigned votes{0};
  std::uint64_t largest{0};  // of what was given
  std::uint64_t sum{0};      // of what was given
};

class Cta {
 public:
  CUDA_ON_CPU_UNSEEN static Cta& current() {
#if defined(__SANITIZE_THREAD__)
    if (mine() != nullptr) return *mine();
#endif
    static Cta cta;
    return cta;
  }

  // Runs every CTA of the grid. Empty, or what went wrong; then the rest was not run.
  std::string run(unsigned blocks, unsigned threads, Order order, unsigned seed,
                  const std::function<void()>& kernel) {
    grid = {blocks, 1, 1};
    size = {threads, 1, 1};
    most_barriers = 0;
    order_ = order;
    random_.seed(seed);
    kernel_ = &kernel;
#if defined(__SANITIZE_THREAD__)
    return run_at_once(seed);
#else
    std::vector<unsigned> turns(blocks);
    for (unsigned i = 0; i < blocks; ++i) turns[i] = i;
    arrange(turns);
    for (const unsigned turn : turns) {
      block = {turn, 0, 0};
      poison_shared();
      if (std::string error = run_block(); !error.empty()) {
        return "block " + std::to_string(turn) + ": " + error;
      }
    }
    return {};
#endif
  }

  // Of the fiber that runs.
  CUDA_ON_CPU_UNSEEN void sync_block(int line, const char* file) {
    suspend(Wait::kBlock, line, 0, file);
  }
  CUDA_ON_CPU_UNSEEN void sync_warp(int line, const char* file) {
    suspend(Wait::kWarp, line, ~0U, file);
  }
  CUDA_ON_CPU_UNSEEN unsigned vote_block(int line, const char* file, bool vote) {
    fibers_[thread.x].given = vote;
    suspend(Wait::kBlock, line, 0, file);
    return fibers_[thread.x].votes;
  }
  CUDA_ON_CPU_UNSEEN unsigned ballot(int line, unsigned mask, bool vote) {
    fibers_[thread.x].given = vote;
    suspend(Wait::kWarp, line, mask);
    return fibers_[thread.x].votes;
  }
  CUDA_ON_CPU_UNSEEN std::uint64_t largest(int line, unsigned mask, std::uint64_t number) {
    fibers_[thread.x].given = number;
    suspend(Wait::kWarp, line, mask);
    return fibers_[thread.x].largest;
  }
  CUDA_ON_CPU_UNSEEN std::uint64_t sum(int line, unsigned mask, std::uint64_t number) {
    fibers_[thread.x].given = number;
    suspend(Wait::kWarp, line, mask);
    return fibers_[thread.x].sum;
  }
  CUDA_ON_CPU_UNSEEN std::uint64_t shuffle(int line, unsigned mask, std::uint64_t number,
                                           unsigned source) {
    fibers_[thread.x].given = number;
    fibers_[thread.x].source = source;
    suspend(Wait::kWarp, line, mask);
    return fibers_[thread.x].got;
  }

  Index grid, size, block, thread;
  unsigned most_barriers{0};  // of the CTA, in any block of the last run

 private:
  CUDA_ON_CPU_UNSEEN static void entry() {
    Cta& cta = current();
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(&cta.edges_.start);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &cta.host_bottom_, &cta.host_bytes_);
#endif
    (*cta.kernel_)();
    cta.suspend(Wait::kEnd, 0, 0);
  }

  void arrange(std::vector<unsigned>& turns) {
    if (order_ == Order::kBackward) std::reverse(turns.begin(), turns.end());
    if (order_ == Order::kShuffled) std::shuffle(turns.begin(), turns.end(), random_);
  }

  CUDA_ON_CPU_UNSEEN void suspend(Wait wait, int line, unsigned mask, const char* file = "") {
    Fiber& fiber = fibers_[thread.x];
    fiber.wait = wait;
    fiber.line = line;
    fiber.mask = mask;
#if defined(__SANITIZE_THREAD__)
    void* edge = nullptr;  // between what is before a barrier and what is after it
    if (wait == Wait::kEnd) {
      __tsan_release(&edges_.end);
    } else if (wait == Wait::kBlock && has_edge(file, line)) {
      edge = &edges_.barriers[fiber.barriers % 2];
      __tsan_release(edge);
    } else if (wait == Wait::kWarp && *file != '\0') {  // __syncwarp; shuffles order nothing
      if (has_edge(file, line)) {
        edge = &edges_.meetings[thread.x / kWarp][fiber.meetings % 2];
        __tsan_release(edge);
      }
      ++fiber.meetings;
    }
    fiber.barriers += wait == Wait::kBlock ? 1 : 0;
    __tsan_switch_to_fiber(seen_, __tsan_switch_to_fiber_no_sync);
#else
    static_cast<void>(file);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(wait == Wait::kEnd ? nullptr : &fiber.fake_stack, host_bottom_,
                                   host_bytes_);
#endif
    swapcontext(&fiber.context, &host_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &host_bottom_, &host_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    if (edge != nullptr) __tsan_acquire(edge);
#endif
  }

  CUDA_ON_CPU_UNSEEN void resume(Fiber& fiber) {
    thread = {fiber.thread, 0, 0};
    fiber.wait = Wait::kNone;
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(fiber.seen, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, fiber.stack.get(), kStackBytes);
#endif
    swapcontext(&host_, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

#if defined(__SANITIZE_THREAD__)
  // The CTA that this host thread runs.
  CUDA_ON_CPU_UNSEEN static Cta*& mine() {
    static thread_local Cta* cta = nullptr;
    return cta;
  }

  // Runs all CTAs, each in a thread of its own.
  std::string run_at_once(unsigned seed) {
    static std::deque<Cta> ctas;  // kept: the sanitizer is slow to meet stacks and fibers
    while (ctas.size() < grid.x) ctas.emplace_back();
    std::vector<std::string> errors(grid.x);
    std::vector<std::thread> threads;
    for (unsigned turn = 0; turn < grid.x; ++turn) {
      threads.emplace_back([this, turn, seed, &cta = ctas[turn], &error = errors[turn]] {
        mine() = &cta;
        cta.grid = grid;
        cta.size = size;
        cta.block = {turn, 0, 0};
        cta.order_ = order_;
        cta.random_.seed(seed + turn);
        cta.kernel_ = kernel_;
        cta.seen_ = __tsan_get_current_fiber();
        error = cta.run_block();
      });
    }
    for (std::thread& one : threads) one.join();
    for (std::string& error : errors) {
      if (!error.empty()) return std::move(error);
    }
    return {};
  }
#endif

  CUDA_ON_CPU_UNSEEN std::string run_block() {
    while (fibers_.size() < size.x) {
      fibers_.emplace_back();
      fibers_.back().stack.reset(new char[kStackBytes]);
    }
    barriers_ = 0;
    std::vector<unsigned> ready(size.x);
    for (unsigned i = 0; i < size.x; ++i) {
      Fiber& fiber = fibers_[i];
      fiber.thread = i;
      getcontext(&fiber.context);
      fiber.context.uc_stack = {fiber.stack.get(), 0, kStackBytes};
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, &Cta::entry, 0);
#if defined(__SANITIZE_THREAD__)
      if (fiber.seen == nullptr) fiber.seen = __tsan_create_fiber(0);
      fiber.barriers = fiber.meetings = 0;
#endif
      ready[i] = i;
    }
#if defined(__SANITIZE_THREAD__)
    __tsan_release(&edges_.start);
#endif
    while (!ready.empty()) {
      arrange(ready);
      ready = run_some(ready);
      if (ready.empty()) open_block(ready);
    }
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(&edges_.end);
#endif
    const auto end = fibers_.begin() + size.x;
    const auto stuck =
        std::find_if(fibers_.begin(), end, [](const Fiber& one) { return one.wait != Wait::kEnd; });
    return stuck == end ? "" : describe(*stuck);
  }

  // Returns who can go on then. Backward, one warp runs as far ahead as barriers of the CTA let it;
  // otherwise all warps keep step.
  CUDA_ON_CPU_UNSEEN std::vector<unsigned> run_some(const std::vector<unsigned>& ready) {
    const bool is_alone = order_ == Order::kBackward;
    const unsigned first = ready[0] / kWarp;
    std::vector<unsigned> next;
    for (const unsigned i : ready) {
      if (is_alone && i / kWarp != first) next.push_back(i);
    }
    for (const unsigned i : ready) {
      if (!is_alone || i / kWarp == first) resume(fibers_[i]);
    }
    // What this warp can go on with comes last, and with the order turned round goes first.
    for (unsigned warp = 0; warp < size.x; warp += kWarp) {
      if (!is_alone || warp / kWarp == first) open_warp(warp, next);
    }
    return next;
  }

  // Lets lanes go on that wait with all the lanes of their mask, at one line.
  CUDA_ON_CPU_UNSEEN void open_warp(unsigned first, std::vector<unsigned>& ready) {
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      const Fiber& leader = fibers_[first + lane];
      if (leader.wait != Wait::kWarp) continue;
      bool is_whole = (leader.mask >> lane & 1) != 0;
      unsigned votes = 0;
      std::uint64_t largest = 0;
      std::uint64_t sum = 0;
      for (unsigned other = 0; other < kWarp; ++other) {
        if ((leader.mask >> other & 1) == 0) continue;
        const Fiber& fiber = fibers_[first + other];
        is_whole = is_whole && fiber.wait == Wait::kWarp && fiber.mask == leader.mask &&
                   fiber.line == leader.line;
        if (fiber.given != 0) votes |= 1U << other;
        largest = std::max(largest, fiber.given);
        sum += fiber.given;
      }
      if (!is_whole) continue;
      const unsigned mask = leader.mask;
      for (unsigned other = 0; other < kWarp; ++other) {
        if ((mask >> other & 1) == 0) continue;
        Fiber& fiber = fibers_[first + other];
        fiber.got = fibers_[first + fiber.source % kWarp].given;
        fiber.votes = votes;
        fiber.largest = largest;
        fiber.sum = sum;
        ready.push_back(first + other);
      }
      for (unsigned other = 0; other < kWarp; ++other) {
        if ((mask >> other & 1) != 0) fibers_[first + other].wait = Wait::kNone;
      }
    }
  }

  // Lets all threads go on if all wait for the CTA, at one line.
  CUDA_ON_CPU_UNSEEN void open_block(std::vector<unsigned>& ready) {
    unsigned votes = 0;
    for (unsigned i = 0; i < size.x; ++i) {
      if (fibers_[i].wait != Wait::kBlock || fibers_[i].line != fibers_[0].line) return;
      votes += fibers_[i].given != 0;
    }
    most_barriers = std::max(most_barriers, ++barriers_);
    for (unsigned i = 0; i < size.x; ++i) {
      fibers_[i].votes = votes;
      ready.push_back(i);
    }
  }

  static std::string describe(const Fiber& fiber) {
    return "thread " + std::to_string(fiber.thread) + " waits for ever at line " +
           std::to_string(fiber.line) +
           (fiber.wait == Wait::kBlock ? ": not all threads of the CTA came"
                                       : ": not all lanes of its mask came");
  }

#if defined(__SANITIZE_THREAD__)
  Edges edges_;
  void* seen_{nullptr};  // the sanitizer's name of the thread that switches fibers
#else
  void poison_shared();
#endif

  unsigned barriers_{0};  // of the block that runs
  Order order_{Order::kForward};
  std::mt19937 random_;
  const std::function<void()>* kernel_{nullptr};
  ucontext_t host_;
  std::vector<Fiber> fibers_;
  const void* host_bottom_{nullptr};
  std::size_t host_bytes_{0};
};

}  // namespace cuda_on_cpu

#if !defined(__SANITIZE_THREAD__)
// What is __shared__ lies in one section, so that all of it can be poisoned.
extern "C" char __start_cuda_shared[], __stop_cuda_shared[];

__attribute__((no_sanitize("address"))) inline void cuda_on_cpu::Cta::poison_shared() {
  // Zeros are what a kernel that forgot to write most easily gets away with; so is any one pattern.
  const unsigned char poison = order_ == Order::kBackward ? 0 : kPoison;
  volatile char* at = __start_cuda_shared;
  for (; at != __stop_cuda_shared; ++at) *at = static_cast<char>(poison);
}
#endif

// ---- the language -------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#if defined(__SANITIZE_THREAD__)
#define __shared__ static thread_local
#else
#define __shared__ static __attribute__((section("cuda_shared")))
#endif
#define gridDim (cuda_on_cpu::Cta::current().grid)
#define blockDim (cuda_on_cpu::Cta::current().size)
#define blockIdx (cuda_on_cpu::Cta::current().block)
#define threadIdx (cuda_on_cpu::Cta::current().thread)

// ---- barriers and lanes -------------------------------------------------------------------------

#define __syncthreads() cuda_on_cpu::Cta::current().sync_block(__LINE__, __FILE__)
#define __syncwarp() cuda_on_cpu::Cta::current().sync_warp(__LINE__, __FILE__)
#define __syncthreads_or(vote) \
  static_cast<int>(cuda_on_cpu::Cta::current().vote_block(__LINE__, __FILE__, (vote) != 0) != 0)
#define __ballot_sync(mask, vote) cuda_on_cpu::Cta::current().ballot(__LINE__, (mask), (vote) != 0)
#define __reduce_max_sync(mask, number) \
  static_cast<unsigned>(cuda_on_cpu::Cta::current().largest(__LINE__, (mask), (number)))
#define __reduce_add_sync(mask, number) \
  static_cast<unsigned>(cuda_on_cpu::Cta::current().sum(__LINE__, (mask), (number)))
#define __shfl_up_sync(mask, number, by) \
  cuda_on_cpu::shuffle_by(__LINE__, (mask), (number), -(int)(by))
#define __shfl_down_sync(mask, number, by) \
  cuda_on_cpu::shuffle_by(__LINE__, (mask), (number), (int)(by))

namespace cuda_on_cpu {

template <typename T>
T shuffle_by(int line, unsigned mask, T number, int by) {
  static_assert(std::is_unsigned_v<T>);
  Cta& cta = Cta::current();
  const int lane = static_cast<int>(cta.thread.x % kWarp);
  const int source = lane + by;
  const bool is_in_warp = source >= 0 && source < static_cast<int>(kWarp);
  return static_cast<T>(
      cta.shuffle(line, mask, number, static_cast<unsigned>(is_in_warp ? source : lane)));
}

}  // namespace cuda_on_cpu

// ---- bits and atomics ---------------------------------------------------------------------------

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline std::uint64_t __umul64hi(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}

// They order nothing but themselves.
template <typename T>
T atomicAdd(T* at, T number) {
  return __atomic_fetch_add(at, number, __ATOMIC_RELAXED);
}
template <typename T>
T atomicOr(T* at, T bits) {
  return __atomic_fetch_or(at, bits, __ATOMIC_RELAXED);
}
template <typename T>
T atomicMin(T* at, T number) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(at, &old, std::min(old, number), false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return old;
}
template <typename T>
T atomicCAS(T* at, T expected, T desired) {
  __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
