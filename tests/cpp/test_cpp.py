"""Build and run every C++ test program under the sanitizers.

A program is `tests/cpp/<room>/<what>_test.cpp` with a `main` that returns 0, linked with all of
`csrc` but the bindings, and with no device code: the table that the build generates is empty.
Objects stay in `build/cpp-<sanitizer>`, so a second run compiles only what changed.
"""

import fcntl
import os
import platform
import shlex
import subprocess
from pathlib import Path

import ninja
import pytest

from tests import fake_driver
from tests.building.project import SETUP

pytestmark = pytest.mark.timeout(900)  # the first run compiles the whole core

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FLAGS = {
    "asan": "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer",
    "tsan": "-fsanitize=thread",
}
COMMON = "-std=c++20 -O1 -g1 -pthread -Wall -Wextra -Wconversion -Werror"
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
PROGRAMS = sorted(path.relative_to(ROOT) for path in HERE.glob("*/*_test.cpp"))
CORE = sorted(
    path.relative_to(ROOT)
    for path in ROOT.glob("csrc/**/*.cpp")
    if path.relative_to(ROOT).parts[1] != "bind"
)
TABLE = Path("fatbin_table.cpp")
RULES = """
rule cxx
  command = $cxx $flags -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc

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


def ninja_text(sanitizer: str, programs: list[Path]) -> str:
    cxx = os.environ.get("CXX") or "g++"
    include = shlex.join([f"-I{ROOT}", f"-I{ROOT / 'csrc'}", f"-I{HERE}"])
    text = [f"cxx = {cxx}", f"flags = {COMMON} {FLAGS[sanitizer]} {include}", RULES]
    objects = [Path("obj", source).with_suffix(".o") for source in [*CORE, *programs]]
    for source, object_ in zip([*CORE, *programs], objects, strict=True):
        text.append(f"build {object_}: cxx {ROOT / source}")
    text.append(f"build {TABLE.with_suffix('.o')}: cxx {TABLE}")
    core = " ".join(str(object_) for object_ in [*objects[: len(CORE)], TABLE.with_suffix(".o")])
    for source, object_ in zip(programs, objects[len(CORE) :], strict=True):
        text.append(f"build {program_path(source)}: link {object_} {core}")
    return "\n".join(text) + "\n"


def build(program: Path, sanitizer: str) -> Path:
    """Build one program and return where it is."""
    directory = ROOT / "build" / f"cpp-{sanitizer}"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run must not build here now
        SETUP.write(directory / TABLE, SETUP.table([]))
        (directory / "build.ninja").write_text(ninja_text(sanitizer, PROGRAMS))
        target = program_path(program)
        tool = Path(ninja.BIN_DIR, "ninja")
        done = subprocess.run(
            [tool, "-C", directory, target], text=True, capture_output=True, check=False
        )
    assert done.returncode == 0, f"{program} did not build:\n{done.stdout}{done.stderr}"
    return directory / target


def run(program: Path) -> subprocess.CompletedProcess[str]:
    def once(*prefix: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*prefix, str(program)],
            env={**os.environ, **ENVIRONMENT, "LD_LIBRARY_PATH": str(fake_driver.build())},
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )

    done = once()
    if "unexpected memory mapping" in done.stderr:
        # ThreadSanitizer of g++ 12 cannot live with more than 28 bits of address randomness.
        done = once("setarch", platform.machine(), "-R")
    return done


def test_there_are_programs() -> None:
    assert PROGRAMS, f"no *_test.cpp under {HERE}"
    assert CORE, f"no sources under {ROOT / 'csrc'}"


@pytest.mark.parametrize("sanitizer", FLAGS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: f"{path.parts[-2]}/{path.stem}")
def test_program_passes(program: Path, sanitizer: str) -> None:
    done = run(build(program, sanitizer))
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
    source, program = tmp_path / f"{control}.cpp", tmp_path / control
    source.write_text(CONTROLS[control])
    cxx = shlex.split(os.environ.get("CXX") or "g++")
    flags = [*COMMON.split(), *FLAGS[sanitizer].split()]
    subprocess.run([*cxx, *flags, source, "-o", program], check=True)
    done = run(program)
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
    source, program = tmp_path / "subject.cpp", tmp_path / "subject"
    source.write_text(CHECKS % statement)
    cxx = shlex.split(os.environ.get("CXX") or "g++")
    subprocess.run([*cxx, *COMMON.split(), f"-I{HERE}", source, "-o", program], check=True)
    done = run(program)
    assert done.returncode == status
    assert says in done.stderr
    assert (f"{source}:4: check failed" in done.stderr) == (status == 1)
