"""The choice of the scheduler's core, measured in C++: from Python the crossing would be most."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
_CORE = _HERE.parent / "csrc"
_ROOM = _CORE / "scheduler"


def build_decisions(folder: Path) -> Callable[[int, int], float]:
    """Return a function of (workers, rounds) that returns the median nanoseconds of a choice.

    Args:
        folder: where the program goes.
    """
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler for the scheduler's choice: set CXX")
    program = folder / "scheduler_decision"
    parts = ("placement.cpp", "cost.cpp", "worker_table.cpp")
    sources = [str(_HERE / "scheduler_decision.cpp"), *(str(_ROOM / part) for part in parts)]
    flags = ["-std=c++20", "-O3", "-DNDEBUG", f"-I{_CORE}"]  # those of the extension
    subprocess.run([compiler, *flags, *sources, "-o", str(program)], check=True)

    def decision_ns(workers: int, rounds: int) -> float:
        done = subprocess.run(
            [program, str(workers), str(rounds)], check=True, capture_output=True, text=True
        )
        return float(done.stdout)

    return decision_ns
