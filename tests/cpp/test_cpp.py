"""Build and run every C++ test program under the sanitizers.

A program is `tests/cpp/<room>/<what>_test.cpp` with a `main` that returns 0, linked with all of
`csrc` but the bindings, and with no device code: the table that the build generates is empty.
Objects stay in `build/cpp-<sanitizer>`, so a second run compiles only what changed. The first test
that needs a sanitizer builds the programs of all tests that were collected for it, on all cores.
"""

import fcntl
import os
import platform
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import ninja
import pytest

from tests import fake_driver
from tests.building.project import SETUP

pytestmark = pytest.mark.timeout(1800)  # the first compiles the whole core and all programs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# -O1 takes twice as long to compile with the checks of UBSan in it.
FLAGS = {
    "asan": ("-Og -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"),
    "tsan": "-O1 -fsanitize=thread",
}
COMMON = "-std=c++20 -g1 -pthread -Wall -Wextra -Wconversion -Werror"
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
PROGRAMS = sorted(path.relative_to(ROOT) for path in HERE.glob("*/*_test.cpp"))
# A program that says nothing of threads has nothing to show to ThreadSanitizer. That it starts none
# is seen when it runs without: see check.h.
HAS_THREADS = {path: "thread" in (ROOT / path).read_text().lower() for path in PROGRAMS}
PROGRAMS_OF = {"asan": PROGRAMS, "tsan": [path for path in PROGRAMS if HAS_THREADS[path]]}
ONE_THREAD = "-DROSE_TEST_ONE_THREAD"
TABLE = Path("fatbin_table.cpp")
# Read once for all: half of the time goes into the standard library. That each file includes what
# it needs is shown by the build of the extension, which has none of this.
STANDARD = Path("standard.h")
# Of what is inlined from there g++ believes that it is ours, and warns of what it makes of it. The
# build of the extension has these warnings, and sanitizers see what they are about.
QUIET = (
    "-Wno-array-bounds -Wno-maybe-uninitialized -Wno-restrict -Wno-stringop-overflow "
    "-Wno-stringop-overread -Wno-unknown-warning-option"
)
HEADERS = """
algorithm array atomic bit chrono condition_variable cstring deque functional iostream limits map
memory mutex optional random set span string thread unordered_map vector
"""
# A program takes what it needs of it: to link all of the core takes longer than to compile a test.
ARCHIVE = Path("core.a")
RULES = """
rule header
  command = $cxx $flags -x c++-header $in -o $out

rule cxx
  command = $cxx $flags $more -include standard.h -Winvalid-pch -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc

rule archive
  command = rm -f $out && ar rcs $out $in

rule link
  command = $cxx $flags $in -o $out
"""

# Each plants the fault that its sanitizer must catch: a sanitizer that is silent here proves
# nothing anywhere else.
CONTROLS = {
    "race": """
        #include <thread>
        int counter = 0;
        int main() {
          std::thread other{[] { for (int i = 0; i < 100'000; ++i) ++counter; }};
          for (int i = 0; i < 100'000; ++i) ++counter;
          other.join();
          return counter < 0;
        }
    """,
    "heap_overflow": """
        #include <vector>
        int main(int argc, char**) {
          std::vector<int> numbers(4);
          return numbers.data()[argc + 3] == 42;
        }
    """,
    "integer_overflow": """
        #include <limits>
        int main(int argc, char**) {
          volatile int most = std::numeric_limits<int>::max();
          most = most + argc;
          return 0;
        }
    """,
}


def program_path(source: Path) -> Path:
    return Path("bin", *source.parts[-2:]).with_suffix("")


def core_of(programs: list[Path]) -> list[Path]:
    """Return what programs are linked with: all sources of the rooms that have programs.

    Imports go down only, so they need no room above their own; one below has programs as well.
    """
    rooms = {path.parts[-2] for path in programs}
    return sorted(
        path.relative_to(ROOT) for room in rooms for path in ROOT.glob(f"csrc/{room}/**/*.cpp")
    )


def ninja_text(sanitizer: str) -> str:
    programs = PROGRAMS_OF[sanitizer]
    core = core_of(programs)
    cxx = os.environ.get("CXX") or "g++"
    include = shlex.join([f"-I{ROOT}", f"-I{ROOT / 'csrc'}", f"-I{HERE}"])
    text = [f"cxx = {cxx}", f"flags = {COMMON} {FLAGS[sanitizer]} {QUIET} {include}", RULES]
    objects = [Path("obj", source).with_suffix(".o") for source in [*core, *programs]]
    text.append(f"build {STANDARD}.gch: header {STANDARD}")
    for source, object_ in zip([*core, *programs], objects, strict=True):
        text.append(f"build {object_}: cxx {ROOT / source} | {STANDARD}.gch")
        if not HAS_THREADS.get(source, True):
            text.append(f"  more = {ONE_THREAD}")
    text.append(f"build {TABLE.with_suffix('.o')}: cxx {TABLE} | {STANDARD}.gch")
    members = " ".join(map(str, [*objects[: len(core)], TABLE.with_suffix(".o")]))
    text.append(f"build {ARCHIVE}: archive {members}")
    for source, object_ in zip(programs, objects[len(core) :], strict=True):
        text.append(f"build {program_path(source)}: link {object_} {ARCHIVE}")
    return "\n".join(text) + "\n"


def build(programs: list[Path], sanitizer: str) -> subprocess.CompletedProcess[str]:
    """Build programs, as many as can be."""
    directory = directory_of(sanitizer)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run must not build here now
        SETUP.write(directory / TABLE, SETUP.table([]))
        SETUP.write(directory / STANDARD, "".join(f"#include <{one}>\n" for one in HEADERS.split()))
        (directory / "build.ninja").write_text(ninja_text(sanitizer))
        tool = Path(ninja.BIN_DIR, "ninja")
        return subprocess.run(
            [tool, "-k0", "-C", directory, *map(program_path, programs)],
            text=True,
            capture_output=True,
            check=False,
        )


def directory_of(sanitizer: str) -> Path:
    return ROOT / "build" / f"cpp-{sanitizer}"


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest) -> Callable[[Path, str], Path]:
    """Return what says where a program is, and fails with the compiler's words if it is not."""
    wanted: dict[str, list[Path]] = {}
    for item in request.session.items:
        values = item.callspec.params if hasattr(item, "callspec") else {}
        if values.get("program") in PROGRAMS:
            wanted.setdefault(values["sanitizer"], []).append(values["program"])
    is_built: dict[str, bool] = {}

    def where(program: Path, sanitizer: str) -> Path:
        if sanitizer not in is_built:
            is_built[sanitizer] = build(wanted.get(sanitizer, []), sanitizer).returncode == 0
        if not is_built[sanitizer]:
            done = build([program], sanitizer)
            assert done.returncode == 0, f"{program} did not build:\n{done.stdout}{done.stderr}"
        return directory_of(sanitizer) / program_path(program)

    return where


def run(program: Path) -> subprocess.CompletedProcess[str]:
    def once(*prefix: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*prefix, str(program)],
            env={**os.environ, **ENVIRONMENT, "LD_LIBRARY_PATH": str(fake_driver.build())},
            text=True,
            capture_output=True,
            timeout=600,
            check=False,
        )

    done = once()
    if "unexpected memory mapping" in done.stderr:
        # ThreadSanitizer of g++ 12 cannot live with more than 28 bits of address randomness.
        done = once("setarch", platform.machine(), "-R")
    return done


def compiled(source: Path, text: str, *flags: str) -> Path:
    """Write a source and return the program that it is compiled to."""
    source.write_text(text)
    cxx, program = shlex.split(os.environ.get("CXX") or "g++"), source.with_suffix("")
    subprocess.run([*cxx, *COMMON.split(), *flags, source, "-o", program], check=True)
    return program


def test_there_are_programs() -> None:
    assert PROGRAMS, f"no *_test.cpp under {HERE}"
    rooms = {path.name for path in ROOT.glob("csrc/*") if path.name != "bind"}
    assert {path.parts[1] for path in core_of(PROGRAMS)} == rooms


@pytest.mark.parametrize(
    ("program", "sanitizer"),
    [
        pytest.param(
            path,
            sanitizer,
            id=f"{path.parts[-2]}/{path.stem}-{sanitizer}",
            marks=[pytest.mark.slow] if sanitizer == "tsan" else [],
        )
        for sanitizer, programs in PROGRAMS_OF.items()
        for path in programs
    ],
)
def test_program_passes(built: Callable[[Path, str], Path], program: Path, sanitizer: str) -> None:
    done = run(built(program, sanitizer))
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("control", "sanitizer", "says"),
    [
        ("race", "tsan", "WARNING: ThreadSanitizer: data race"),
        ("heap_overflow", "asan", "heap-buffer-overflow"),
        ("integer_overflow", "asan", "signed integer overflow"),
    ],
)
def test_planted_fault_is_caught(tmp_path: Path, control: str, sanitizer: str, says: str) -> None:
    done = run(compiled(tmp_path / f"{control}.cpp", CONTROLS[control], *FLAGS[sanitizer].split()))
    assert done.returncode != 0
    assert says in done.stderr
    if sanitizer == "tsan":
        assert done.returncode == 66, "a race must end the program with ThreadSanitizer's status"


CHECKS = """
    #include "check.h"
    TEST(first) { CHECK(true); CHECK_EQ(2u, 2); CHECK_EQ(std::string_view{"a"}, "a"); }
    TEST(second) { %s; }
    TEST_MAIN()
"""


@pytest.mark.parametrize(
    ("statement", "status", "says"),
    [
        ("CHECK_EQ(1 + 1, 2)", 0, "second"),
        ("CHECK(1 + 1 == 3)", 1, "1 + 1 == 3"),
        ("CHECK_EQ(1 + 1, 3)", 1, "1 + 1 = 2"),
    ],
)
def test_check_h_tells_right_from_wrong(
    tmp_path: Path, statement: str, status: int, says: str
) -> None:
    source = tmp_path / "subject.cpp"
    done = run(compiled(source, CHECKS % statement, "-O1", f"-I{HERE}"))
    assert done.returncode == status
    assert says in done.stderr
    assert (f"{source}:4: check failed" in done.stderr) == (status == 1)


def test_thread_that_nobody_speaks_of_is_seen(tmp_path: Path) -> None:
    text = CHECKS % "std::async(std::launch::async, [] {}).get()"
    flags = [*FLAGS["asan"].split(), f"-I{HERE}", "-include", "future"]
    for one_thread, status in ([], 0), ([ONE_THREAD], 1):
        program = compiled(tmp_path / "subject.cpp", text, *flags, *one_thread)
        assert run(program).returncode == status
