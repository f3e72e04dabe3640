"""The scheduler's core: time of a decision, and of a burst of revocations."""

import pytest

from bench.conftest import Report
from bench.paired import quantile
from bench.programs import program
from bench.rows import Bar

WORKERS = 1024
REVOKED = 384
TURNS_EACH = 32


@pytest.mark.parametrize("workers", [64, WORKERS])
def test_decision_in_the_core(report: Report, workers: int) -> None:
    decision = program("scheduler_decision")
    samples: list[float] = []
    rounds = report.count(20_000)
    report.repeat(lambda: samples.append(float(*decision(workers, rounds))), 7)
    bar = Bar(at_most=2.0) if workers == WORKERS else None
    report.add(f"decision_{workers}_workers_us", quantile(samples, 0.5) / 1000, "us", bar=bar)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_correlated_revocation_in_the_core(report: Report, is_mixed: bool) -> None:
    burst = program("scheduler_burst")
    samples: list[float] = []
    moved = 0

    def revoke() -> None:
        nonlocal moved
        took_ms, moves = burst(WORKERS, REVOKED, TURNS_EACH, report.count(5), int(is_mixed))
        samples.append(float(took_ms))
        moved = int(moves)

    report.repeat(revoke, 5)
    name = "mixed_turns_" if is_mixed else ""
    report.add(f"revoke_{REVOKED}_of_{WORKERS}_{name}ms", quantile(samples, 0.5), "ms")
    report.add(f"revoke_moved_{name or 'turns_'}in_the_core_count", moved, "turns")
