"""Set-up from a clone: `make install` without and with nvcc, and all of `.ci/run`.

Without FULL=1 there is one install of each kind. With it, installs are medians of three, and
`.ci/run` is a single run of a quarter of an hour. Everything runs in a temporary folder. pip keeps
its own cache of downloads, so the first run on a machine may measure the network.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from bench.conftest import Report
from bench.rows import Bar, Term

ROOT = Path(__file__).resolve().parent.parent
RUNS = 3
IMPORTS = 11
SAMPLE_S = 0.1
COMMAND_S = 3600.0  # longest run of a command in a clone; `.ci/run` takes a quarter of it
END_S = 300.0  # longest run of git, or of an interpreter that imports rose
WITHOUT_NVCC_S_MAX = 200.0
WITH_NVCC_S_MAX = 240.0
TEST_S_MAX = 12 * 60.0
CI_S_MAX = 17 * 60.0
BUILD_GIB_MAX = 4.0  # with two jobs
WHEEL_MIB_MAX = 3.25  # ADR 0028
IMPORT_S_MAX = 0.1
IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
# Times printed by `make install` and pytest.
PHASE = re.compile(r"^rose: (.+): (\d+) s$", re.MULTILINE)
TESTS = re.compile(r"^=+ .*\bpassed\b.* in ([\d.]+)s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that ran in a fresh clone.

    Args:
        clone: folder of the clone.
        took_s: duration.
        peak_gib: largest resident memory of the command and its descendants together.
        log: output of the command.
    """

    clone: Path
    took_s: float
    peak_gib: float
    log: str

    def phases(self) -> list[Term]:
        return [Term(name, float(seconds), "s") for name, seconds in PHASE.findall(self.log)]


def output(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        check=True,
        timeout=END_S,
    )
    return done.stdout


class PeakMemory(threading.Thread):
    """Samples the resident memory of a process and its descendants until the process ends."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._root = psutil.Process(pid)

    def run(self) -> None:
        with suppress(psutil.NoSuchProcess):
            while self._root.status() != psutil.STATUS_ZOMBIE:
                held_bytes = 0
                for process in self._root.children(recursive=True):
                    with suppress(psutil.NoSuchProcess):  # it ended between two samples
                        held_bytes += process.memory_info().rss
                self.peak_bytes = max(self.peak_bytes, held_bytes)
                time.sleep(SAMPLE_S)


@contextmanager
def ran_in_a_clone(folder: Path, *command: str, cuda: str) -> Iterator[Ran]:
    """Run a command in a clone of this repository's commit; the clone exists until the block ends.

    The output of the command is passed on line by line.
    """
    clone = folder / "rose"
    output("git", "clone", "-q", ROOT, clone, cwd=folder)
    try:
        yield run_in(clone, command, cuda=cuda)
    finally:
        shutil.rmtree(clone)  # 2 GiB


def run_in(clone: Path, command: Sequence[str], *, cuda: str) -> Ran:
    # The variables of an outer make do not apply to the clone.
    ours = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    python = str(Path(sys.base_prefix, "bin", "python3"))
    log = []
    started = time.perf_counter()
    with subprocess.Popen(
        command,
        cwd=clone,
        env={**environment, "ROSE_CUDA": cuda, "PYTHON": python},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        memory = PeakMemory(process.pid)
        memory.start()
        late = threading.Timer(COMMAND_S, process.kill)
        late.start()
        for line in process.stdout or ():
            log.append(line)
            print(line, end="", file=sys.stderr, flush=True)
        late.cancel()
        # The process has ended. It is a zombie until `with` reaps it, and so the sampler ends.
        memory.join(END_S)
    took_s = time.perf_counter() - started
    named = " ".join(command)
    assert process.returncode == 0, f"{named} ended with status {process.returncode}, see above"
    return Ran(clone, took_s, memory.peak_bytes / 2**30, "".join(log))


def add_import(report: Report, clone: Path) -> None:
    python = clone / ".venv" / "bin" / "python"
    # `rose` itself is nearly empty, so the imports of an engine are shown too.
    for module, bar in (("rose", Bar(at_most=IMPORT_S_MAX)), ("rose.executor", None)):
        program = IMPORT.format(module)
        imports_s = [float(output(python, "-c", program, cwd=clone)) for _ in range(IMPORTS)]
        name = f"import_{module.replace('.', '_')}_s_p50"
        report.add(name, statistics.median(imports_s), "s", bar=bar)


def add_wheel(report: Report, clone: Path) -> None:
    python = clone / ".venv" / "bin" / "python"
    output(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", ".", cwd=clone)
    (wheel,) = (clone / "dist").glob("*.whl")
    size_mib = wheel.stat().st_size / 2**20
    report.add("wheel_mib", size_mib, "MiB", bar=Bar(at_most=WHEEL_MIB_MAX))


def add_installs(
    report: Report,
    folder: Path,
    *,
    kind: str,
    cuda: str,
    at_most_s: float,
    product: Callable[[Report, Path], None],
) -> None:
    """Install in one clone after another; report on the result of the last one."""
    count = report.count(RUNS, at_least=1, brief=1)
    runs: list[Ran] = []
    for number in range(1, count + 1):
        report.say(f"install {kind}, {number} of {count}")
        with ran_in_a_clone(folder, "make", "install", cuda=cuda) as one:
            runs.append(one)
            report.add(f"install_{kind}_run_{number}_s", one.took_s, "s", terms=one.phases())
            if number == count:
                product(report, one.clone)
    median_s = statistics.median(one.took_s for one in runs)
    report.add(f"install_{kind}_s_p50", median_s, "s", bar=Bar(at_most=at_most_s))
    peak_gib = max(one.peak_gib for one in runs)
    report.add(f"install_{kind}_gib_max", peak_gib, "GiB", bar=Bar(at_most=BUILD_GIB_MAX))


def test_install_without_nvcc(report: Report, tmp_path: Path) -> None:
    add_installs(
        report,
        tmp_path,
        kind="without_nvcc",
        cuda="off",
        at_most_s=WITHOUT_NVCC_S_MAX,
        product=add_import,
    )


def test_install_with_nvcc(report: Report, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        names = ("install_with_nvcc_s_p50", "install_with_nvcc_gib_max", "wheel_mib")
        report.leave_out(names, "there is no nvcc on the path")
        return
    add_installs(
        report,
        tmp_path,
        kind="with_nvcc",
        cuda="on",
        at_most_s=WITH_NVCC_S_MAX,
        product=add_wheel,
    )


@pytest.mark.slow
def test_ci(report: Report, tmp_path: Path) -> None:
    """Run `.ci/run` once; its `make test` also gives the row of the tests."""
    with ran_in_a_clone(tmp_path, ".ci/run", cuda="auto") as one:
        tests_s = TESTS.findall(one.log)
    assert tests_s, "pytest did not print how long it took"
    report.add("make_test_s", float(tests_s[-1]), "s", bar=Bar(at_most=TEST_S_MAX))
    report.add("ci_run_s", one.took_s, "s", bar=Bar(at_most=CI_S_MAX), terms=one.phases())
