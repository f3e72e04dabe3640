"""What the C++ tests rest on: sanitizers that find faults, and checks that fail."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cpp.conftest import run
from tests.cpp.rooms import COMMON, FLAGS, FOLDERS, HERE, ROOMS, rooms_used

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


def compiled(source: Path, text: str, *flags: str) -> Path:
    """Write a source and return the program that it is compiled to."""
    source.write_text(text)
    cxx, program = shlex.split(os.environ.get("CXX") or "g++"), source.with_suffix("")
    subprocess.run([*cxx, *COMMON.split(), *flags, source, "-o", program], check=True)
    return program


def test_each_room_but_the_bindings_has_tests() -> None:
    rooms = {path.name for folder in FOLDERS for path in folder.iterdir()} - {"bind", "bind_sim"}
    assert set(ROOMS) == rooms
    assert set(rooms_used(HERE.glob("*/*"))) == rooms


@pytest.mark.parametrize(
    ("control", "sanitizer", "says"),
    [
        pytest.param(
            *("race", "tsan", "WARNING: ThreadSanitizer: data race"), marks=pytest.mark.slow
        ),
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
    int main(int count, char** arguments) { return rose::test::run(count, arguments); }
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


def test_a_test_that_fails_hides_no_other(tmp_path: Path) -> None:
    source = tmp_path / "subject.cpp"
    program = compiled(source, CHECKS % "__builtin_trap()", "-O1", f"-I{HERE}")
    for test, is_right in {"first": True, "second": False, "no_such_test": False}.items():
        done = run(program, "/subject.cpp", test)
        assert (done.returncode == 0) == is_right
        assert (test in done.stderr) == (test != "no_such_test")
    assert run(program, "/other.cpp", "first").returncode == 1, "nothing was run"
