"""`make mutants N=30`: remove or negate statements at random, and list those that no test notices.

A mutant is one change of one line range: a statement that is removed, or a condition that is
negated. Python is read by `ast`. Of C++ and CUDA a line counts that is one whole statement, or the
head of one `if`. The draw is seeded by the commit, so nobody chooses the mutants. Each is made in a
copy of the tree, built there, and given to the default tests of its room; there are two copies, and
each judges one mutant at a time. A C++ mutant is built into the sanitised program of its room
first, and into the extension only if that program's tests pass. A mutant that does not build is
drawn again. At the end each test that noticed one runs on an unchanged copy: a mutant whose test
fails there, too, was not noticed.
"""

import argparse
import ast
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal

from rich.console import Console

ROOT: Final = Path(__file__).resolve().parents[1]
# The tests that protect a room: its own, and those of the room that puts it to use.
TESTS_OF: Final = {
    "memory": ("tests/memory", "tests/executor"),
    "compute": ("tests/compute", "tests/executor"),
    "slo": ("tests/slo", "tests/executor"),
    "coserving": ("tests/compute", "tests/executor"),
    "transfer": ("tests/transfer", "tests/checkpoints"),
    "scheduler": ("tests/scheduler", "tests/lab/sim"),
    "executor": ("tests/executor", "tests/engines"),
    "kernels": ("tests/kernels", "tests/transfer"),
}
_TIMEOUT_S: Final = 1800
_COPIES: Final = 2
_BUILD_ROOM: Final = """
import sys
from tests.cpp.rooms import build
sys.exit(build(sys.argv[1:], "asan").returncode)
"""
_BUILD_CORE: Final = ("setup.py", "-q", "build_ext", "--inplace")
_STATEMENT: Final = re.compile(
    r"^\s+(?!return|using|case|default|break|static_assert|template)[^/#{}]+;$"
)
# A line after any other goes on with what began there.
_BEFORE: Final = re.compile(r"(^|[;{}:]|//.*)$")
_DECLARES: Final = re.compile(r"^\s+(const |constexpr |auto |[\w:<>,\s*&]+ \w+(\{|;| = ))")
_CONDITION: Final = re.compile(r"^(\s*(?:\} else )?if )\((.+)\) (\{|return.*;|continue;|break;)$")
_PYTEST: Final = ("-m", "pytest", "-q", "-x")
Outcome = Literal["killed", "survived"]


@dataclass(frozen=True)
class Mutant:
    """One change.

    Args:
        room: of TESTS_OF.
        path: of the file, from the root.
        line: first line that changes, from 1.
        lines: how many lines it replaces.
        text: what stands there instead.
        was: what stood there, on one line.
    """

    room: str
    path: str
    line: int
    lines: int
    text: str
    was: str

    def apply(self, root: Path) -> None:
        """Change the file under `root`."""
        file = root / self.path
        lines = file.read_text().splitlines(keepends=True)
        lines[self.line - 1 : self.line - 1 + self.lines] = [self.text]
        write(file, "".join(lines).encode())


def write(file: Path, content: bytes) -> None:
    """Write a source, and forget its bytecode: it may be as large, and of the same second."""
    file.write_bytes(content)
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def in_python(room: str, path: Path) -> Iterator[Mutant]:
    """Yield every statement to remove and every condition to negate."""
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    name = str(path.relative_to(ROOT))

    def mutant(first: int, last: int, text: str) -> Mutant:
        was = " ".join("".join(lines[first - 1 : last]).split())
        return Mutant(room, name, first, last - first + 1, text, was)

    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt) or node.end_lineno is None:
            continue
        indent = " " * node.col_offset
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if is_call or isinstance(node, ast.Assign | ast.AugAssign | ast.Raise | ast.Delete):
            yield mutant(node.lineno, node.end_lineno, f"{indent}pass\n")
        elif isinstance(node, (ast.If, ast.While)) and node.test.end_lineno == node.lineno:
            head = lines[node.lineno - 1]
            start, end = node.test.col_offset, node.test.end_col_offset
            text = f"{head[:start]}not ({head[start:end]}){head[end:]}"
            yield mutant(node.lineno, node.lineno, text)


def in_cxx(room: str, path: Path) -> Iterator[Mutant]:
    """Yield every line that is one statement, to remove, or the head of an `if`, to negate."""
    name = str(path.relative_to(ROOT))
    before = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if found := _CONDITION.match(line):
            lead, condition, rest = found.groups()
            yield Mutant(room, name, number, 1, f"{lead}(!({condition})) {rest}\n", line.strip())
        elif (
            _STATEMENT.match(line) and not _DECLARES.match(line) and _BEFORE.search(before.strip())
        ):
            yield Mutant(room, name, number, 1, ";\n", line.strip())
        before = line


def candidates(room: str) -> list[Mutant]:
    """Return all mutants of a room, in a fixed order."""
    found: list[Mutant] = []
    for path in sorted((ROOT / "rose" / room).rglob("*.py")):
        if not path.stem.endswith("_pb2"):
            found += in_python(room, path)
    folders = [ROOT / "kernels"] if room == "kernels" else [ROOT / "csrc" / room]
    for folder in folders:
        for pattern in ("*.cpp", "*.h", "*.cu", "*.cuh"):
            for path in sorted(folder.rglob(pattern)):
                found += in_cxx(room, path)
    return found


def tests_fail(root: Path, *tests: str) -> list[str] | None:
    """Run tests up to the first that fails, and name it; None when all pass, or there are none."""
    failed = root / ".pytest_cache/v/cache/lastfailed"
    failed.unlink(missing_ok=True)
    if run(root, *_PYTEST, *tests) in {0, 5}:
        return None
    return list(json.loads(failed.read_text())) if failed.exists() else []


def run(root: Path, *command: str) -> int:
    """Run a command in the copy; one that takes too long has failed."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    try:
        return subprocess.run(
            [sys.executable, *command],
            cwd=root,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return -1


def judge(root: Path, mutant: Mutant) -> dict[str, object] | None:
    """Return what becomes of a mutant in the copy at `root`; None when it does not build."""
    original = (root / mutant.path).read_bytes()
    mutant.apply(root)
    failed, is_in_core = None, False
    try:
        if not mutant.path.endswith(".py"):
            if (root / "tests/cpp" / mutant.room).is_dir():
                if run(root, "-c", _BUILD_ROOM, mutant.room):
                    return None
                failed = tests_fail(root, f"tests/cpp/{mutant.room}")
            is_in_core = failed is None
            if is_in_core and run(root, *_BUILD_CORE):
                return None
        if failed is None:
            failed = tests_fail(root, *TESTS_OF[mutant.room])
    finally:
        write(root / mutant.path, original)
        if is_in_core:
            run(root, *_BUILD_CORE)
    outcome: Outcome = "survived" if failed is None else "killed"
    return {**asdict(mutant), "outcome": outcome, "by": failed or []}


def summary_of(
    commit: str, judged: list[dict[str, object]], *, is_checked: bool
) -> dict[str, object]:
    killed = sum(one["outcome"] == "killed" for one in judged)
    return {
        "commit": commit,
        "killed_share": killed / len(judged),
        "is_checked": is_checked,
        "mutants": judged,
    }


def main() -> int:
    """Draw, judge and report; status 0 whatever survives, 1 if a test fails on unchanged code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--json", type=Path, default=ROOT / "bench/results/mutants.json")
    options = parser.parse_args()
    console = Console(highlight=False)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout.strip()
    rooms = list(TESTS_OF)
    pools = {room: candidates(room) for room in rooms}
    copies: SimpleQueue[Path] = SimpleQueue()

    def judged_at(place: int) -> dict[str, object]:
        draw = random.Random(f"{commit} {place}")
        root = copies.get()
        try:
            while (found := judge(root, draw.choice(pools[rooms[place % len(rooms)]]))) is None:
                pass
        finally:
            copies.put(root)
        return found

    judged: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="rose-mutants-") as folder:
        left_out = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache")
        for copy in range(_COPIES):
            shutil.copytree(ROOT, Path(folder, str(copy)), ignore=left_out)
            copies.put(Path(folder, str(copy)))
        with ThreadPoolExecutor(_COPIES) as pool:
            for found in pool.map(judged_at, range(options.count)):
                judged.append(found)
                console.print(
                    f"{len(judged)}/{options.count} {found['outcome']}: "
                    f"{found['path']}:{found['line']} {found['was']}",
                    markup=False,
                    soft_wrap=True,
                )
                summary = summary_of(commit, judged, is_checked=False)
                options.json.write_text(json.dumps(summary, indent=2) + "\n")
        witnesses = sorted({str(test) for one in judged for test in one["by"]})
        if witnesses and (wrong := tests_fail(copies.get(), *witnesses)):
            console.print(f"fails on the unchanged copy, mend it first: {wrong[0]}", markup=False)
            return 1
    summary = summary_of(commit, judged, is_checked=True)
    options.json.write_text(json.dumps(summary, indent=2) + "\n")
    console.print(f"{summary['killed_share']:.0%} were noticed; {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
