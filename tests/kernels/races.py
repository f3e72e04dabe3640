"""Races of the kernels, found by ThreadSanitizer: `races.cpp`, built and run."""

import os
import platform
import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kernels.on_cpu import HERE, ROOT

_FLAGS: Final = "-std=c++20 -O1 -g -fno-strict-aliasing -Wall -Wextra -Werror -Wno-unknown-pragmas"
_BARRIER: Final = re.compile(r"\b__sync(threads(_or)?|warp)\(")


@dataclass(frozen=True)
class Found:
    """Result of a run.

    Args:
        reached: barriers that were reached, as "file:line".
        races: number of races with all barriers.
        found: barriers without which there is a race.
        missed: barriers without which there is none.
        reports: words of the sanitizer.
    """

    reached: frozenset[str]
    races: int
    found: frozenset[str]
    missed: frozenset[str]
    reports: str


def barriers() -> frozenset[str]:
    """Return every barrier of the kernels' sources."""
    return frozenset(
        f"{path.name}:{number}"
        for path in (ROOT / "kernels").iterdir()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _BARRIER.search(line.split("//")[0])
    )


def build(target: Path) -> Path:
    """Compile the kernels with ThreadSanitizer."""
    include = [f"-I{ROOT / 'kernels'}", f"-I{HERE}"]
    command = ["g++", *_FLAGS.split(), "-fsanitize=thread", *include, HERE / "races.cpp"]
    subprocess.run([*command, "-o", target], check=True)
    return target


def run(program: Path, left_out: Collection[str] = ()) -> Found:
    """Run all kernels, then again without each barrier of `left_out`."""
    # ThreadSanitizer of g++ 12 cannot live with more than 28 bits of address randomness.
    command = ["setarch", platform.machine(), "-R", program, *sorted(left_out)]
    # Runs without one barrier or another race at the same addresses.
    options = {
        "TSAN_OPTIONS": "exitcode=0 history_size=4 suppress_equal_stacks=0 "
        "suppress_equal_addresses=0"
    }
    done = subprocess.run(
        command, env={**os.environ, **options}, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, set[str]] = {"reached": set(), "races": set(), "found": set(), "missed": set()}
    for line in done.stdout.splitlines():
        word, name = line.split()
        said[word].add(name)
    return Found(
        reached=frozenset(said["reached"]),
        races=int(said["races"].pop()),
        found=frozenset(said["found"]),
        missed=frozenset(said["missed"]),
        reports=done.stderr,
    )
