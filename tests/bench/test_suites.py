"""Each program and each suite of the bench runs: one tiny round, in which no figure is judged."""

import json
import subprocess
import warnings
from pathlib import Path
from typing import Final

import pytest

from bench.bench_tenants import LoadedLoan
from bench.document import NOT_REACHED, UNFINISHED
from bench.rows import CONTROL, faults
from bench.suites import files_of, suites
from rose._core import Grant
from tests.bench.test_bench import bench
from tests.cpp.conftest import run
from tests.cpp.rooms import PROGRAMS, build, folder_of

# The smallest arguments of each program, and the number of words that it prints.
TINY: Final = {
    "futex_round_trip": ((3,), 3),
    "long_wire": ((0, 1, 0, 0), 1),
    "scheduler_burst": ((64, 24, 4, 2, 1), 2),
    "scheduler_decision": ((64, 100), 1),
}
# A file of a larger suite is a suite of its own, too; here each file runs once.
_IN_LARGER: Final = {
    file for suite in suites() if len(files_of(suite)) > 1 for file in files_of(suite)
}
SUITES: Final = [
    suite for suite in suites() if len(files := files_of(suite)) > 1 or files[0] not in _IN_LARGER
]


def test_every_program_has_a_tiny_run() -> None:
    assert set(TINY) == {name for name, source in PROGRAMS.items() if source.parts[0] == "bench"}


@pytest.fixture(scope="module")
def built() -> Path:
    done: subprocess.CompletedProcess[str] = build(TINY, "asan")
    assert done.returncode == 0, done.stdout
    return folder_of("asan")


@pytest.mark.timeout(1800)  # the first test builds rooms of the core
@pytest.mark.parametrize("name", TINY)
def test_a_program_runs_under_sanitizers(built: Path, name: str) -> None:
    arguments, words = TINY[name]
    done = run(built / name, *map(str, arguments))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == words


def test_a_borrower_uses_slabs_that_arrive_during_its_step() -> None:
    loan = LoadedLoan()
    try:
        loan.await_work()
        assert isinstance(loan.arbiter.grant(loan.rollout, 4, ttl_ns=10**12), Grant)
        loan.await_work()
    finally:
        loan.borrower.end()


@pytest.mark.slow
@pytest.mark.timeout(3900)  # the limit of a suite, and the time to stop it
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_runs(repo: Path, tmp_path: Path, suite: str) -> None:
    path = tmp_path / f"{suite}.json"
    done = bench(repo, "--suite", suite, "--json", path, "--quick")
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    assert faults(document) == []
    rows = document["rows"]
    assert [row["name"] for row in rows if f"  {row['name']}: " not in done.stderr] == []
    bars = [row for row in rows if row["bar"] and not row["name"].startswith(CONTROL)]
    assert f"of {len(bars)} bars hold" in done.stdout
    left_out = {one["name"]: one["reason"] for one in document.get("unmeasured", [])}
    assert not {NOT_REACHED, UNFINISHED}.intersection(left_out.values())
    reasons = "; ".join(f"{name.rpartition('::')[2]}: {why}" for name, why in left_out.items())
    if not rows:
        pytest.skip(f"nothing was measured: {reasons}")
    if reasons:
        warnings.warn(f"suite {suite} left out {reasons}", stacklevel=1)
