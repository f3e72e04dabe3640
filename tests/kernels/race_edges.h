// What orders two accesses of a kernel, for ThreadSanitizer.
//
// Each thread of a CTA is a fiber that the sanitizer knows. A switch between fibers orders nothing;
// only a barrier of the CTA or of a warp does, and shuffles and atomics do not. So two accesses
// without a barrier between them are a race, whatever order they ran in. One barrier can be left
// out of the order: its threads still wait, but the sanitizer is told nothing. A barrier without
// which no race is found separates nothing.
#pragma once

#include <sanitizer/tsan_interface.h>

#include <mutex>
#include <set>
#include <string>

// Of the sanitizer's runtime, which declares them nowhere.
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
}

// For the fibers' own machinery, which is not part of a kernel.
#define CUDA_ON_CPU_UNSEEN __attribute__((no_sanitize("thread")))

namespace cuda_on_cpu {

// Objects whose addresses stand for orders: the start of a CTA, its end, every other barrier, and
// every other one of each warp.
struct Edges {
  char start{0};
  char end{0};
  char barriers[2]{};
  char meetings[32][2]{};
};

// The barriers that were reached, as "file:line", and the one that is left out.
struct Barriers {
  std::mutex mutex;  // CTAs run at once
  std::set<std::string> reached;
  std::string left_out;

  static Barriers& all() {
    static Barriers barriers;
    return barriers;
  }
};

// Notes a barrier, and returns whether it orders. Its lock must not order anything either.
inline bool has_edge(const char* file, int line) {
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  std::string name = file;
  name = name.substr(name.rfind('/') + 1) + ":" + std::to_string(line);
  bool orders = true;
  {
    Barriers& barriers = Barriers::all();
    const std::lock_guard lock{barriers.mutex};
    barriers.reached.insert(name);
    orders = name != barriers.left_out;
  }
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  return orders;
}

}  // namespace cuda_on_cpu
