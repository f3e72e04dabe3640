// The kernels as a library for a CPU. What they read and write is the caller's memory.
#include "cuda_on_cpu.h"

#include "delta_apply.cu"
#include "delta_pack.cu"
#include "digest.cu"
#include "topk_pack.cu"
#include "topk_unpack.cu"

namespace {

std::string error_of_last_run;

template <typename Params>
const char* run(void (*kernel)(Params), const void* params, unsigned blocks, unsigned threads,
                int order, unsigned seed) {
  Params copy;
  std::memcpy(&copy, params, sizeof copy);
  error_of_last_run =
      cuda_on_cpu::Cta::current().run(blocks, threads, static_cast<cuda_on_cpu::Order>(order), seed,
                                      [kernel, &copy] { kernel(copy); });
  return error_of_last_run.c_str();
}

}  // namespace

extern "C" unsigned barriers_of_last_run() { return cuda_on_cpu::Cta::current().most_barriers; }

// Returns an empty text, or what went wrong.
#define ROSE_KERNEL(name)                                                                  \
  extern "C" const char* run_##name(const void* params, unsigned blocks, unsigned threads, \
                                    int order, unsigned seed) {                            \
    return run(name, params, blocks, threads, order, seed);                                \
  }

ROSE_KERNEL(delta_apply_digest_kernel)
ROSE_KERNEL(delta_apply_kernel)
ROSE_KERNEL(delta_pack_16k_kernel)
ROSE_KERNEL(delta_pack_flat_16k_kernel)
ROSE_KERNEL(delta_pack_flat_64k_kernel)
ROSE_KERNEL(delta_pack_kernel)
ROSE_KERNEL(digest_kernel)
ROSE_KERNEL(topk_histogram_kernel)
ROSE_KERNEL(topk_threshold_kernel)
ROSE_KERNEL(topk_unpack_kernel)
