"""The scheduler's core, measured in C++, because the call from Python would dominate."""

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
    """Return a function of (workers, rounds) that returns the median nanoseconds of a decision.

    Args:
        folder: output folder of the compiled program.
    """
    parts = ("caches", "placement", "lineup", "leasts", "cost", "worker_table")
    program = _build(folder, "scheduler_decision", [_ROOM / f"{part}.cpp" for part in parts])

    def decision_ns(workers: int, rounds: int) -> float:
        return float(_run(program, workers, rounds))

    return decision_ns


def build_bursts(folder: Path) -> Callable[[int, int, int, int, bool], tuple[float, int]]:
    """Return a function that returns the median ms of a step, and how many turns the step moves.

    Its arguments are (workers, revoked, turns, rounds, whether turns differ).

    Args:
        folder: output folder of the compiled program.
    """
    program = _build(folder, "scheduler_burst", sorted(_ROOM.glob("*.cpp")))

    def burst_ms(
        workers: int, revoked: int, turns: int, rounds: int, is_mixed: bool
    ) -> tuple[float, int]:
        took_ms, moved = _run(program, workers, revoked, turns, rounds, int(is_mixed)).split()
        return float(took_ms), int(moved)

    return burst_ms


def _build(folder: Path, name: str, parts: list[Path]) -> Path:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler for the scheduler's core: set CXX")
    program = folder / name
    sources = [str(_HERE / f"{name}.cpp"), *map(str, parts)]
    flags = ["-std=c++20", "-O3", "-DNDEBUG", f"-I{_CORE}"]  # flags of the extension
    subprocess.run([compiler, *flags, *sources, "-o", str(program)], check=True)
    return program


def _run(program: Path, *arguments: int) -> str:
    words = [str(program), *map(str, arguments)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
