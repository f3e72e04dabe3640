// The kernels as a library for a CPU that counts how often they read each word of a range. The
// compiler calls a function at every access for ThreadSanitizer; here these functions only count.
// clang-format off
#define NO_HOOK __attribute__((no_sanitize("thread")))
// clang-format on

#include <cstdlib>

#include "kernels_on_cpu.cpp"

namespace {

// Plain arrays: the functions of others are counted themselves.
std::uintptr_t watched = 0;
std::size_t words_watched = 0;
unsigned* reads = nullptr;

}  // namespace

using rose::kernels::u32;
using rose::kernels::u64;
using rose::kernels::u8;

extern "C" {

NO_HOOK void watch(std::uintptr_t words, std::size_t count) {
  watched = words;
  words_watched = count;
  std::free(reads);
  reads = static_cast<unsigned*>(std::calloc(count + 1, sizeof(unsigned)));
}
NO_HOOK const unsigned* reads_of_watched() { return reads; }

NO_HOOK void __tsan_read_range(void* at, std::size_t bytes) {
  const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(at) - watched) / 4;
  for (std::uintptr_t i = first; i < first + (bytes + 3) / 4; ++i) {
    if (i < words_watched) ++reads[i];
  }
}
#define READ(bytes)                                                                     \
  NO_HOOK void __tsan_read##bytes(void* at) { __tsan_read_range(at, bytes); }           \
  NO_HOOK void __tsan_volatile_read##bytes(void* at) { __tsan_read_range(at, bytes); }  \
  NO_HOOK void __tsan_unaligned_read##bytes(void* at) { __tsan_read_range(at, bytes); } \
  NO_HOOK void __tsan_write##bytes(void*) {}                                            \
  NO_HOOK void __tsan_volatile_write##bytes(void*) {}                                   \
  NO_HOOK void __tsan_unaligned_write##bytes(void*) {}
READ(1)
READ(2)
READ(4)
READ(8)
READ(16)
// Atomics do what they say. In none does a kernel read a payload.
#define ATOMIC(bits)                                                                              \
  NO_HOOK u##bits __tsan_atomic##bits##_load(const volatile u##bits* at, int) {                   \
    return __atomic_load_n(at, __ATOMIC_RELAXED);                                                 \
  }                                                                                               \
  NO_HOOK void __tsan_atomic##bits##_store(volatile u##bits* at, u##bits now, int) {              \
    __atomic_store_n(at, now, __ATOMIC_RELAXED);                                                  \
  }                                                                                               \
  NO_HOOK u##bits __tsan_atomic##bits##_fetch_add(volatile u##bits* at, u##bits by, int) {        \
    return __atomic_fetch_add(at, by, __ATOMIC_RELAXED);                                          \
  }                                                                                               \
  NO_HOOK u##bits __tsan_atomic##bits##_fetch_or(volatile u##bits* at, u##bits by, int) {         \
    return __atomic_fetch_or(at, by, __ATOMIC_RELAXED);                                           \
  }                                                                                               \
  NO_HOOK int __tsan_atomic##bits##_compare_exchange_strong(volatile u##bits* at, u##bits* then,  \
                                                            u##bits now, int, int) {              \
    return __atomic_compare_exchange_n(at, then, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
  }
ATOMIC(8)
ATOMIC(32)
ATOMIC(64)

NO_HOOK void __tsan_write_range(void*, std::size_t) {}
NO_HOOK void __tsan_init() {}
NO_HOOK void __tsan_func_entry(void*) {}
NO_HOOK void __tsan_func_exit(void*) {}
NO_HOOK void __tsan_vptr_read(void*) {}
NO_HOOK void __tsan_vptr_update(void**, void*) {}
}
