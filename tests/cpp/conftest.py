"""Each `TEST` of `tests/cpp/<room>/<what>_test.cpp` is a test of pytest, in a process of its own.

It runs under ASan and UBSan and, in the slow tier, under ThreadSanitizer. The first test that needs
a sanitizer builds the programs of all rooms that were collected for it.
"""

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests import fake_driver
from tests.cpp.rooms import SANITIZERS, build, folder_of

ENVIRONMENT: Final = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
_TEST: Final = re.compile(r"^TEST\((\w+)\)", re.MULTILINE)
# A file that leaks on purpose says so: other files of its program must not leak that.
_LEAK: Final = re.compile(r"^// LeakSanitizer: (leak:\S+)$", re.MULTILINE)
_BUILT: Final = pytest.StashKey[dict[object, object]]()


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a sanitised program over the fake driver."""

    def once(*prefix: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*prefix, *map(str, command)],
            env={
                **os.environ,
                **ENVIRONMENT,
                "LD_LIBRARY_PATH": str(fake_driver.build()),
                **environment,
            },
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


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    is_test = file_path.name.endswith("_test.cpp")
    return CppFile.from_parent(parent, path=file_path) if is_test else None


class CppFile(pytest.File):
    def collect(self) -> Iterator["CppTest"]:
        text = self.path.read_text()
        for found in _TEST.finditer(text):
            line = text.count("\n", 0, found.start())
            for sanitizer in SANITIZERS:
                yield CppTest.from_parent(
                    self, name=f"{found[1]}[{sanitizer}]", test=found[1], line=line
                )


class Failed(Exception):
    """A test or its build failed, in their own words."""


class CppTest(pytest.Item):
    def __init__(self, *, test: str, line: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.room, self.test, self.line = self.path.parent.name, test, line
        self.sanitizer = self.name.removeprefix(f"{test}[").removesuffix("]")
        self.add_marker(pytest.mark.timeout(1800))  # the first builds the whole core and all tests
        if self.sanitizer == "tsan":
            self.add_marker(pytest.mark.slow)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line, self.test

    def repr_failure(self, excinfo, style=None):
        is_ours = isinstance(excinfo.value, Failed)
        return str(excinfo.value) if is_ours else super().repr_failure(excinfo, style)

    def setup(self) -> None:
        is_built = self.session.stash.setdefault(_BUILT, {})
        if self.sanitizer not in is_built:
            tests = [one for one in self.session.items if isinstance(one, CppTest)]
            rooms = {one.room for one in tests if one.sanitizer == self.sanitizer}
            is_built[self.sanitizer] = build(sorted(rooms), self.sanitizer).returncode == 0
        if not is_built[self.sanitizer]:
            room = (self.room, self.sanitizer)
            if room not in is_built:  # Each room is tried once, so that one does not hide others.
                is_built[room] = build([self.room], self.sanitizer)
            if is_built[room].returncode:
                raise Failed(f"the tests of {self.room} did not build:\n{is_built[room].stdout}")

    def runtest(self) -> None:
        folder = folder_of(self.sanitizer)
        leaks = folder / "tests" / f"{self.room}-{self.path.stem}.leaks"
        leaks.write_text("\n".join(_LEAK.findall(self.path.read_text())))
        options = f"suppressions={leaks}:print_suppressions=0"
        done = run(folder / self.room, f"/{self.path.name}", self.test, LSAN_OPTIONS=options)
        if done.returncode:
            raise Failed(f"status {done.returncode}\n{done.stdout}{done.stderr}")
