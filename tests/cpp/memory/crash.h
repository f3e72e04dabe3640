// Runs a function in a forked process and ends that process right after its k-th store to shared
// memory. The code under test does not know.
//
// The writable mappings of the mailbox and the ledger are made read-only, so each store faults. The
// handler lets one instruction through with the processor's trap flag, and counts it.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "check.h"

namespace rose::test {

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
// ThreadSanitizer makes an atomic store inside its runtime, which must not be interrupted there.
inline constexpr bool kCanCrash = true;
#else
inline constexpr bool kCanCrash = false;
#endif

namespace crash {

struct Shared {
  void* begin;
  std::size_t size_bytes;
};
inline std::array<Shared, 8> shared{};
inline std::size_t shared_count = 0;
inline int stores_left = 0;

inline constexpr int kCrashed = 77;

inline void protect(int protection) {
  for (std::size_t i = 0; i < shared_count; ++i) {
    ::mprotect(shared[i].begin, shared[i].size_bytes, protection);
  }
}

inline void find_shared() {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  CHECK(maps != nullptr);
  std::array<char, 512> line{};
  while (std::fgets(line.data(), line.size(), maps) != nullptr) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::array<char, 8> access{};
    if (std::sscanf(line.data(), "%" SCNxPTR "-%" SCNxPTR " %7s", &begin, &end, access.data()) != 3)
      continue;
    const bool is_ours = std::strstr(line.data(), "memfd:rose-mailbox") != nullptr ||
                         std::strstr(line.data(), "memfd:rose-ledger") != nullptr;
    if (!is_ours || access[1] != 'w') continue;
    CHECK(shared_count < shared.size());
    shared[shared_count++] = {reinterpret_cast<void*>(begin), end - begin};
  }
  std::fclose(maps);
}

#if defined(__x86_64__)
inline constexpr long long kTrapFlag = 0x100;

inline void on_store(int, siginfo_t*, void* context) {
  protect(PROT_READ | PROT_WRITE);
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= kTrapFlag;
}

inline void on_stored(int, siginfo_t*, void* context) {
  if (--stores_left == 0) ::_exit(kCrashed);
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
  protect(PROT_READ);
}

inline void arm(int store) {
  find_shared();
  CHECK(shared_count > 0);
  stores_left = store;
  struct sigaction action{};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = on_store;
  ::sigaction(SIGSEGV, &action, nullptr);
  action.sa_sigaction = on_stored;
  ::sigaction(SIGTRAP, &action, nullptr);
  protect(PROT_READ);
}
#else
inline void arm(int) {}
#endif

}  // namespace crash

// True if `work` was cut off after its `store`-th store (from 1); false if it has fewer, and is
// complete. Call it while there is one thread.
template <typename Work>
bool crashes_after(int store, Work work) {
  const pid_t child = ::fork();
  CHECK(child >= 0);
  if (child == 0) {
    crash::arm(store);
    work();
    ::_exit(0);
  }
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == crash::kCrashed);
  return WEXITSTATUS(status) == crash::kCrashed;
}

}  // namespace rose::test
