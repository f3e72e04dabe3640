// What a test does to the fake driver, and what it sees of it. Exported by name from the fake's
// libcuda.so.1, so that ctypes and C++ programs alike find them; C++ says `Fake fake;`.
#pragma once

#include <dlfcn.h>

#include <cstdint>

#include "driver/abi.h"

// Runs when a kernel is executed, in the order of its stream, with the launch's arguments: as many
// as fakecuda_arguments() declared, in words of 8 bytes, zero-extended. It may call anything.
using FakeKernel = void (*)(const std::uint64_t* arguments, unsigned count, void* context);

// X(name, result, arguments). Texts stay valid until the same thread asks for another one.
#define FAKECUDA_CONTROLS(X)                                                                     \
  /* One line a call since the last reset, with arguments and answer; indented: what it held. */ \
  X(log, const char*, ())                                                                        \
  X(calls, unsigned, (const char* name))                                                         \
  /* One line for each kernel that was executed: name, grid, block, stream, arguments. */        \
  X(kernels, const char*, ())                                                                    \
  /* What is alive, by kind and number; empty when nothing is. Contexts count their retains. */  \
  X(live, const char*, ())                                                                       \
  /* What a driver would answer with an error, or with disaster: unknown and dead handles, calls \
     without a context, memory that is gone when work reaches it. */                             \
  X(faults, const char*, ())                                                                     \
  /* Forgets log, faults and all that was set below; what is alive stays alive. */               \
  X(reset, void, ())                                                                             \
  /* The nth call of `name` from now on (1 is the next; "*": of any entry) answers `code`, once. \
     A call that gives something back has done so when it answers. */                            \
  X(fail, void, (const char* name, int nth, int code))                                           \
  X(is_fail_pending, int, ())                                                                    \
  X(missing, void, (const char* name))                                                           \
  /* To be set before the driver is opened; also FAKECUDA_DEVICES, _VERSION, _MISSING (names     \
     with commas), _UUIDS (last bytes, with commas), _FAIL (name@nth=code) and _ATTRIBUTES       \
     (number=value with commas). */                                                              \
  X(set_devices, void, (int count))                                                              \
  X(set_version, void, (int version))                                                            \
  X(set_attribute, void, (int attribute, int value))                                             \
  X(set_memory, void, (std::size_t bytes))                                                       \
  /* Pieces of work that a stream holds; the next launch blocks its thread. 0: any number. */    \
  X(set_launch_queue, void, (std::size_t count))                                                 \
  /* As CUDA_LAUNCH_BLOCKING, which the fake reads too: a launch returns when it has run. */     \
  X(set_launch_blocking, void, (int is_blocking))                                                \
  /* Threads that wait inside a launch. */                                                       \
  X(blocked, unsigned, ())                                                                       \
  /* The context stack of the calling thread: a foreign context on top, and how deep it is. */   \
  X(push_foreign, void, ())                                                                      \
  X(is_foreign_current, int, ())                                                                 \
  X(pop_foreign, void, ())                                                                       \
  X(depth, int, ())                                                                              \
  /* Streams run as far as they can whenever anything is called, or now. */                      \
  X(pump, void, ())                                                                              \
  X(hold, void, (CUstream stream))                                                               \
  X(release, void, (CUstream stream))                                                            \
  /* Runs what waits in a held stream and holds it again, as one: no launch slips in between. */ \
  X(advance, void, (CUstream stream))                                                            \
  X(pending, unsigned, (CUstream stream))                                                        \
  X(invalidate, void, (CUstream stream))                                                         \
  /* The sizes of a kernel's arguments, which the driver cannot know: "8 8 4". */                \
  X(arguments, void, (const char* kernel, const char* sizes))                                    \
  X(on_kernel, void, (const char* kernel, FakeKernel run, void* context))                        \
  /* What a kernel does with cudaGraphSetConditional. */                                         \
  X(set_condition, void, (std::uint64_t condition, unsigned value))

// The controls of the fake that Driver::open() finds, or null pointers when it finds another
// driver.
struct Fake {
#define FAKECUDA_POINTER(name, result, arguments) result(*name) arguments{nullptr};
  FAKECUDA_CONTROLS(FAKECUDA_POINTER)
#undef FAKECUDA_POINTER

  Fake() noexcept {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
#define FAKECUDA_FIND(name, result, arguments) \
  name = reinterpret_cast<result(*) arguments>(::dlsym(library, "fakecuda_" #name));
    FAKECUDA_CONTROLS(FAKECUDA_FIND)
#undef FAKECUDA_FIND
  }
};
