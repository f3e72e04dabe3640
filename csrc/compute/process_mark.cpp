#include "compute/process_mark.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string>
#include <string_view>

namespace rose::compute {

namespace {

// Field 22 of proc(5): the 20th after the name, which stands in brackets and may hold anything.
constexpr int kFieldsFromNameToStart = 20;

Result<std::uint64_t> start_of(pid_t pid) noexcept {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file.is_open()) return from_errno("open of a process's stat", errno);
  std::array<char, 1024> bytes{};
  const ssize_t size = ::read(file.get(), bytes.data(), bytes.size());
  if (size < 0) return from_errno("read of a process's stat", errno);
  std::string_view text{bytes.data(), static_cast<std::size_t>(size)};
  text.remove_prefix(std::min(text.rfind(')') + 1, text.size()));
  for (int field = 0; field < kFieldsFromNameToStart; ++field) {
    text.remove_prefix(std::min(text.find(' ') + 1, text.size()));
  }
  std::uint64_t ticks = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), ticks);
  if (read.ec != std::errc{}) return Status::unavailable("/proc does not tell a process's start");
  return ticks;
}

}  // namespace

Result<ProcessMark> own_mark() noexcept {
  const Result<std::uint64_t> started = start_of(::getpid());
  if (!started.ok()) return started.status();
  return ProcessMark{.pid = ::getpid(), .started_ticks = started.value()};
}

Result<Process> open_process(const ProcessMark& mark) noexcept {
  Result<Process> process = Process::open(mark.pid);
  if (!process.ok()) return process;
  // Read behind the opening: while what was opened lives, the number is its own.
  const Result<std::uint64_t> started = start_of(mark.pid);
  if (!started.ok() || started.value() != mark.started_ticks || !process.value().is_alive()) {
    return Status::unavailable("process " + std::to_string(mark.pid) + " is gone");
  }
  return process;
}

}  // namespace rose::compute
