#include "base/cgroup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/memfd.h"

namespace rose {

namespace {

namespace fs = std::filesystem;

// Maximum number of parents followed: a chain may change while it is read, so the walk must be
// bounded.
constexpr int kParentsMax = 64;
// Parent id that the kernel reports if the parent is outside the reader's pid namespace.
constexpr pid_t kUnseen = 0;

// Returns the mount point of cgroup v2, which may exist beside version 1; nothing without one.
std::optional<std::string> mount_of(const CgroupTree& tree) {
  if (!tree.mount.empty()) return tree.mount;
  std::ifstream mounts{fs::path{tree.proc} / "self" / "mounts"};
  std::string line;
  while (std::getline(mounts, line)) {
    std::istringstream words{line};
    std::string device, at, kind;
    if (words >> device >> at >> kind && kind == "cgroup2") return at;
  }
  return std::nullopt;
}

// Returns the path of a process's cgroup, relative to the mount point and beginning with '/'.
// Returns nothing for the root cgroup, and for a cgroup outside our namespace.
std::optional<std::string> path_of(pid_t pid, const CgroupTree& tree) {
  std::ifstream lines{tree.proc + "/" + std::to_string(pid) + "/cgroup"};
  std::string line;
  while (std::getline(lines, line)) {
    constexpr std::string_view kVersion2 = "0::";
    if (!line.starts_with(kVersion2)) continue;
    std::string path = line.substr(kVersion2.size());
    const bool is_outside = path.starts_with("/..");
    if (path.size() < 2 || is_outside) return std::nullopt;
    return path;
  }
  return std::nullopt;
}

// Returns the parent's id, which is the fourth field of /proc/<pid>/stat. The second field, the
// process's name in brackets, may contain any characters, even spaces and brackets.
pid_t parent_of(pid_t pid, const CgroupTree& tree) {
  std::ifstream stat{tree.proc + "/" + std::to_string(pid) + "/stat"};
  std::string line;
  if (!std::getline(stat, line)) return kUnseen;
  const std::size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return kUnseen;
  std::istringstream words{line.substr(end_of_name + 1)};
  std::string state;
  pid_t parent = kUnseen;
  words >> state >> parent;
  return parent;
}

bool is_offspring(pid_t pid, pid_t of, const CgroupTree& tree) {
  for (int steps = 0; steps < kParentsMax && pid > 1; ++steps) {
    if (pid == of) return true;
    pid = parent_of(pid, tree);
  }
  return false;
}

// Returns true if every process in this directory is `pid` or one of its descendants, and none is
// the calling process. (If the borrower `pid` has started serving, serving is a descendant, but
// must not be killed.) A process that ends during the check may count as foreign; then the cgroup
// is left alone.
bool has_only(const fs::path& directory, pid_t pid, const CgroupTree& tree) {
  std::ifstream members{directory / "cgroup.procs"};
  if (!members.is_open()) return false;
  pid_t member = kUnseen;
  while (members >> member) {
    if (member == ::getpid() || !is_offspring(member, pid, tree)) return false;
  }
  return members.eof();
}

bool is_alone(const fs::path& directory, pid_t pid, const CgroupTree& tree) {
  if (!has_only(directory, pid, tree)) return false;
  std::error_code failure;
  for (fs::recursive_directory_iterator at{directory, failure}, end; !failure && at != end;
       at.increment(failure)) {
    if (at->is_directory(failure) && !has_only(at->path(), pid, tree)) return false;
  }
  return !failure;
}

bool kill_all(const std::string& directory) noexcept {
  const std::string path = directory + "/cgroup.kill";
  const FileDescriptor file{::open(path.c_str(), O_WRONLY | O_CLOEXEC)};
  return file.is_open() && ::write(file.get(), "1", 1) == 1;
}

}  // namespace

std::optional<std::string> own_cgroup(const Process& process, const CgroupTree& tree) noexcept {
  const std::optional<std::string> mount = mount_of(tree);
  const std::optional<std::string> path = path_of(process.pid(), tree);
  if (!mount.has_value() || !path.has_value()) return std::nullopt;
  const std::string directory = *mount + *path;
  std::error_code failure;
  const bool can_kill = fs::exists(directory + "/cgroup.kill", failure);
  if (!can_kill || !is_alone(directory, process.pid(), tree)) return std::nullopt;
  // A process that is alive now has kept its pid, so the files above belonged to this process.
  return process.is_alive() ? std::optional{directory} : std::nullopt;
}

Status kill_with_cgroup(const Process& process, const CgroupTree& tree) noexcept {
  const std::optional<std::string> directory = own_cgroup(process, tree);
  if (directory.has_value()) static_cast<void>(kill_all(*directory));
  return process.kill();
}

}  // namespace rose
