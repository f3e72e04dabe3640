"""Tests that nothing may run beside, when several processes share a run of pytest."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# Files that take longest, the longest first: the others fill in what is left of the time. The C++
# tests build with a process for each core.
FIRST: Final = (
    "tests/cpp/",
    "tests/building/",
    "tests/test_packaging.py",
    "tests/lab/demo/rl/test_trainer.py",
    "tests/engines/test_chaos.py",
    "tests/engines/test_chaos_commits.py",
    "tests/engines/test_borrowed.py",
    "tests/transfer/test_fault_runs.py",
    "tests/engines/test_inflight.py",
    "tests/engines/test_probes.py",
    "tests/engines/test_shut_out.py",
    "tests/engines/test_moves.py",
    "tests/transfer/test_device_codec.py",
    "tests/lab/demo/rl/test_program",
    "tests/engines/test_engine.py",
)
# A clock judges what they look at (targets of a service, a program that counts as dead when it is
# silent), or they look at what is there once for the machine. Most tests need not be here: they
# wait for what must happen, however long it takes.
ALONE: Final = (
    "tests/bench/test_netns.py",
    "tests/lab/cli/test_compare.py::test_real_engines_run_rivals_and_rose_on_the_same_requests",
    "tests/lab/demo/test_demo.py::test_quick_demo_runs_every_arm_and_every_certificate_verifies",
    "tests/lab/demo/rl/test_rl_loop.py",
)


def is_alone(nodeid: str) -> bool:
    """Return whether a test is one of those."""
    return nodeid.startswith(ALONE)


def place(nodeid: str) -> int:
    """Return what tests are sorted by: the longest files, all others, what runs alone."""
    if is_alone(nodeid):
        return len(FIRST) + 1
    return next((at for at, name in enumerate(FIRST) if nodeid.startswith(name)), len(FIRST))


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Wait until nothing runs beside a test that is to be alone, and keep all others out.

    Processes take turns at a door, so one that waits for the others to end is not passed by those
    that come after it. A process that is killed lets go of both.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
