"""Set-up from nothing: a clone, `make install` without and with nvcc, and what it makes.

Everything happens in a temporary folder. pip keeps its own cache of downloads, so the first run
on a machine may measure the network.
"""

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.conftest import Report
from bench.rows import Bar, Term

ROOT = Path(__file__).resolve().parent.parent
RUNS = 3
IMPORTS = 11
SAMPLE_S = 0.1
WITHOUT_NVCC_S_MAX = 200.0
WITH_NVCC_S_MAX = 240.0
BUILD_GIB_MAX = 4.0  # with two jobs
WHEEL_MIB_MAX = 3.25  # ADR 0028
IMPORT_S_MAX = 0.1
IMPORT = "import time; t = time.perf_counter(); import rose; print(time.perf_counter() - t)"


@dataclass(frozen=True, slots=True)
class Installed:
    """One set-up: the clone, how long `make install` took, and the most memory it held."""

    clone: Path
    install_s: float
    peak_gib: float


def output(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, text=True, stdout=subprocess.PIPE, check=True
    )
    return done.stdout


class PeakMemory(threading.Thread):
    """Samples the resident memory of a process and of all it started, until it has ended."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._root = psutil.Process(pid)

    def run(self) -> None:
        with suppress(psutil.NoSuchProcess):
            while self._root.status() != psutil.STATUS_ZOMBIE:
                held_bytes = 0
                for process in self._root.children(recursive=True):
                    with suppress(psutil.NoSuchProcess):  # it ended between two looks
                        held_bytes += process.memory_info().rss
                self.peak_bytes = max(self.peak_bytes, held_bytes)
                time.sleep(SAMPLE_S)


def set_up(folder: Path, *, cuda: str) -> Installed:
    """Clone this repository's commit into an empty folder and install it there."""
    clone = folder / "rose"
    output("git", "clone", "-q", ROOT, clone, cwd=folder)
    # Of the make that may run this: its variables are not for the clone.
    ours = ("MAKEFLAGS", "MAKEOVERRIDES", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    python = Path(sys.base_prefix, "bin", "python3")
    started = time.perf_counter()
    process = subprocess.Popen(
        ["make", "install", f"PYTHON={python}"],
        cwd=clone,
        env={**environment, "ROSE_CUDA": cuda},
        stdout=sys.stderr,
    )
    memory = PeakMemory(process.pid)
    memory.start()
    status = process.wait()
    took_s = time.perf_counter() - started
    memory.join()
    assert status == 0, f"make install ended with status {status}; see its output above"
    return Installed(clone, took_s, memory.peak_bytes / 2**30)


@contextmanager
def one_set_up(tmp_path: Path, *, cuda: str) -> Iterator[Installed]:
    folder = tmp_path / "set-up"
    folder.mkdir()
    try:
        yield set_up(folder, cuda=cuda)
    finally:
        shutil.rmtree(folder)  # 2 GiB


def seconds_row(report: Report, name: str, runs: list[Installed], at_most_s: float) -> None:
    runs_s = [run.install_s for run in runs]
    terms = [Term(f"run_{at + 1}", run_s, "s") for at, run_s in enumerate(runs_s)]
    bar = Bar(at_most=at_most_s)
    report.add(name, statistics.median(runs_s), "s", bar=bar, terms=terms)


def add_import(report: Report, clone: Path) -> None:
    python = clone / ".venv" / "bin" / "python"
    imports_s = [float(output(python, "-c", IMPORT, cwd=clone)) for _ in range(IMPORTS)]
    bar = Bar(at_most=IMPORT_S_MAX)
    report.add("import_rose_s_p50", statistics.median(imports_s), "s", bar=bar)


def add_wheel(report: Report, clone: Path) -> None:
    python = clone / ".venv" / "bin" / "python"
    output(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", ".", cwd=clone)
    (wheel,) = (clone / "dist").glob("*.whl")
    size_mib = wheel.stat().st_size / 2**20
    report.add("wheel_mib", size_mib, "MiB", bar=Bar(at_most=WHEEL_MIB_MAX))


def test_set_up_without_nvcc(report: Report, tmp_path: Path) -> None:
    runs = measured(report, tmp_path, cuda="off", product=add_import)
    seconds_row(report, "install_without_nvcc_s_p50", runs, WITHOUT_NVCC_S_MAX)


def test_set_up_with_nvcc(report: Report, tmp_path: Path) -> None:
    name = "install_with_nvcc_s_p50"
    if shutil.which("nvcc") is None:
        report.leave_out([name, "install_gib_max", "wheel_mib"], "there is no nvcc on the path")
        return
    runs = measured(report, tmp_path, cuda="on", product=add_wheel)
    seconds_row(report, name, runs, WITH_NVCC_S_MAX)
    peak_gib = max(run.peak_gib for run in runs)
    report.add("install_gib_max", peak_gib, "GiB", bar=Bar(at_most=BUILD_GIB_MAX))


def measured(
    report: Report, tmp_path: Path, *, cuda: str, product: Callable[[Report, Path], None]
) -> list[Installed]:
    """Set up several times; report on the product of the last."""
    runs: list[Installed] = []

    def measure() -> None:
        count = report.count(RUNS, at_least=1)
        while len(runs) < count:
            with one_set_up(tmp_path, cuda=cuda) as installed:
                runs.append(installed)
                if len(runs) == count:
                    product(report, installed.clone)

    report.once(measure)
    return runs
