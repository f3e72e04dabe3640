// The processes in a cgroup with another, and those that die with it.
#include "base/cgroup.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"

using rose::CgroupTree;
using rose::FileDescriptor;
using rose::Process;

namespace {

namespace fs = std::filesystem;

constexpr rose::Nanoseconds kLong = 60'000'000'000;

void write_file(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream{path} << text;
}

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream{path}.rdbuf();
  return text.str();
}

// A process with a helper; both sleep until they are killed, and hold the end of a pipe open.
struct Family {
  FileDescriptor alive;  // at its end when both are dead
  pid_t parent{-1};
  pid_t helper{-1};

  // `enter` is the file that the parent writes itself into first, if it is not empty.
  explicit Family(const std::string& enter) {
    int ends[2];
    int told[2];
    CHECK(::pipe2(ends, O_CLOEXEC) == 0 && ::pipe2(told, O_CLOEXEC) == 0);
    parent = ::fork();
    CHECK(parent >= 0);
    if (parent == 0) {
      for (int fd = 0; fd <= 2; ++fd) ::close(fd);  // a test that fails leaves nobody waiting
      const int file = enter.empty() ? -1 : ::open(enter.c_str(), O_WRONLY);
      const bool has_entered = enter.empty() || (file >= 0 && ::write(file, "0", 1) == 1);
      const pid_t born = has_entered ? ::fork() : -1;
      if (born != 0 && ::write(told[1], &born, sizeof(born)) != sizeof(born)) ::_exit(1);
      ::alarm(100);
      while (true) ::pause();
    }
    ::close(ends[1]);
    alive = FileDescriptor{ends[0]};
    CHECK(::read(told[0], &helper, sizeof(helper)) == sizeof(helper));
    ::close(told[0]);
    ::close(told[1]);
    CHECK(helper > 0);
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;
  ~Family() {
    ::kill(helper, SIGKILL);
    if (parent > 0) reap();
  }

  // Waits for the parent, which another process must have killed.
  bool has_died() {
    int status = 0;
    for (int tries = 0; tries < 60'000; ++tries) {
      if (::waitpid(parent, &status, WNOHANG) == parent) {
        parent = -1;
        return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      }
      ::usleep(1000);
    }
    return false;
  }
  void reap() {
    ::kill(parent, SIGKILL);
    int status = 0;
    CHECK(::waitpid(std::exchange(parent, -1), &status, 0) > 0);
  }
  bool are_gone() const {
    pollfd end{alive.get(), POLLIN, 0};
    return rose::poll_for({&end, 1}, kLong) && (end.revents & POLLHUP) != 0;
  }
};

// Directories of the test in place of /proc and of the cgroups.
struct MadeUp {
  fs::path root = [] {
    std::string name = (fs::temp_directory_path() / "rose-cgroup-XXXXXX").string();
    CHECK(::mkdtemp(name.data()) != nullptr);
    return name;
  }();
  CgroupTree tree{(root / "proc").string(), (root / "cgroup").string()};
  fs::path group = root / "cgroup" / "jobs" / "borrower";

  MadeUp() = default;
  MadeUp(const MadeUp&) = delete;
  MadeUp& operator=(const MadeUp&) = delete;
  ~MadeUp() { fs::remove_all(root); }

  void add_process(pid_t pid, pid_t parent, const std::string& name = "python") {
    const fs::path at = root / "proc" / std::to_string(pid);
    write_file(at / "cgroup", "1:cpu:/other\n0::/jobs/borrower\n");
    write_file(at / "stat", std::to_string(pid) + " (" + name + ") S " + std::to_string(parent));
  }
  void set_members(const std::vector<pid_t>& pids, const std::string& below = "") {
    std::string text;
    for (const pid_t pid : pids) text += std::to_string(pid) + "\n";
    write_file(group / below / "cgroup.procs", text);
  }
  std::string killed() const { return text_of(group / "cgroup.kill"); }
};

// A process with a helper 41, whose child is 42; 99 is another program.
struct Case : MadeUp {
  Family family{""};
  pid_t me = family.parent;
  Process process = Process::open(me).take();

  Case() {
    add_process(me, 1);
    add_process(41, me, "a) S 7 (");  // a name may contain anything
    add_process(42, 41);
    add_process(99, 1);
    set_members({me, 41, 42});
    write_file(group / "cgroup.kill", "");
  }
  bool is_own() const { return rose::own_cgroup(process, tree) == group.string(); }
  bool is_nobodys() const { return !rose::own_cgroup(process, tree).has_value(); }
};

// A new cgroup; empty where none can be made.
std::string real_cgroup() {
  std::ifstream mounts{"/proc/self/mounts"};
  std::string device, at, kind, rest;
  while (mounts >> device >> at >> kind && std::getline(mounts, rest)) {
    if (kind != "cgroup2") continue;
    const std::string made = at + "/rose-test-" + std::to_string(::getpid());
    std::error_code failure;
    if (fs::create_directory(made, failure) && fs::exists(made + "/cgroup.kill")) return made;
    fs::remove(made, failure);
  }
  return {};
}

}  // namespace

TEST(cgroup_of_a_process_and_its_offspring_is_its_own) {
  Case one;
  CHECK(one.is_own());
  one.set_members({42}, "below");
  CHECK(one.is_own());
}

TEST(cgroup_with_somebody_else_is_not) {
  Case one;
  one.set_members({one.me, 41, 42, 99});
  CHECK(one.is_nobodys());
  one.set_members({one.me, 41, 42});
  CHECK(one.is_own());
  one.set_members({99}, "below/deep");
  CHECK(one.is_nobodys());
}

TEST(cgroup_with_a_process_of_another_namespace_is_not) {
  Case one;
  one.set_members({one.me, 0});
  CHECK(one.is_nobodys());
}

TEST(cgroup_that_we_are_in_is_not) {
  Case one;
  one.add_process(::getpid(), one.me);  // even if it started us
  one.set_members({one.me, ::getpid()});
  CHECK(one.is_nobodys());
}

TEST(helper_that_outlived_its_parent_counts_as_somebody_else) {
  Case one;
  one.add_process(41, 1);
  CHECK(one.is_nobodys());
}

TEST(root_and_foreign_cgroups_are_nobodys_own) {
  for (const char* line : {"0::/\n", "0::/../outside\n", "1:cpu:/only\n", ""}) {
    Case one;
    for (const char* where : {"cgroup", "outside"}) {  // they would qualify if they were read
      write_file(one.root / where / "cgroup.kill", "");
      write_file(one.root / where / "cgroup.procs", std::to_string(one.me));
    }
    one.set_members({});
    write_file(one.root / "proc" / std::to_string(one.me) / "cgroup", line);
    CHECK(one.is_nobodys());
  }
}

TEST(cgroup_that_cannot_be_killed_is_left_alone) {
  Case one;
  fs::remove(one.group / "cgroup.kill");
  CHECK(one.is_nobodys());
}

TEST(cgroup_of_a_process_that_ended_is_nobodys) {
  Case one;
  CHECK(one.is_own());
  one.family.reap();
  CHECK(one.is_nobodys());
}

TEST(process_beside_somebody_else_is_killed_alone) {
  Case one;
  one.set_members({one.me, 99});
  CHECK(rose::kill_with_cgroup(one.process, one.tree).ok());
  CHECK(one.killed().empty());
  CHECK(one.family.has_died());
  CHECK(::kill(one.family.helper, 0) == 0);
}

TEST(helpers_die_with_the_process_of_a_cgroup) {
  const std::string group = real_cgroup();
  std::printf("  %s\n", group.empty() ? "over a made-up directory" : group.c_str());
  if (group.empty()) {
    Case one;
    CHECK(rose::kill_with_cgroup(one.process, one.tree).ok());
    CHECK(one.killed() == "1");
    CHECK(one.family.has_died());
    return;
  }
  Family family{group + "/cgroup.procs"};
  const Process process = Process::open(family.parent).take();
  CHECK(rose::own_cgroup(process) == group);
  CHECK(rose::kill_with_cgroup(process).ok());
  CHECK(family.are_gone());
  CHECK(family.has_died());
  std::error_code failure;
  for (int tries = 0; tries < 1000 && !fs::remove(group, failure); ++tries) ::usleep(1000);
  CHECK(!fs::exists(group));
}
