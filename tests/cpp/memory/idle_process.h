// A process for a tenant that does nothing.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "check.h"

namespace rose::test {

// Create it before any thread starts, because it is forked.
struct IdleProcess {
  pid_t pid = start();

  static pid_t start() {
    const pid_t made = ::fork();
    CHECK(made >= 0);
    while (made == 0) ::pause();
    return made;
  }
  ~IdleProcess() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
};

}  // namespace rose::test
