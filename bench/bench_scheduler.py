"""The scheduler's core: time of a decision, and of a burst of revocations."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.conftest import Report
from bench.decision import build_bursts, build_decisions
from bench.paired import quantile
from bench.rows import Bar

WORKERS = 1024
REVOKED = 384
TURNS_EACH = 32


@pytest.mark.parametrize("workers", [64, WORKERS])
def test_decision_in_the_core(report: Report, tmp_path: Path, workers: int) -> None:
    decision_ns = build_decisions(tmp_path)
    samples: list[float] = []
    report.repeat(lambda: samples.append(decision_ns(workers, report.count(20_000))), 7)
    bar = Bar(at_most=2.0) if workers == WORKERS else None
    report.add(f"decision_{workers}_workers_us", quantile(samples, 0.5) / 1000, "us", bar=bar)


@pytest.fixture(scope="module")
def burst_ms(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[float, int]]:
    return build_bursts(tmp_path_factory.mktemp("burst"))  # compiles for half a minute


@pytest.mark.parametrize("is_mixed", [False, True])
def test_correlated_revocation_in_the_core(
    report: Report, burst_ms: Callable[..., tuple[float, int]], is_mixed: bool
) -> None:
    samples: list[float] = []
    moved = 0

    def burst() -> None:
        nonlocal moved
        took_ms, moved = burst_ms(WORKERS, REVOKED, TURNS_EACH, report.count(5), is_mixed)
        samples.append(took_ms)

    report.repeat(burst, 5)
    name = "mixed_turns_" if is_mixed else ""
    report.add(f"revoke_{REVOKED}_of_{WORKERS}_{name}ms", quantile(samples, 0.5), "ms")
    report.add(f"revoke_moved_{name or 'turns_'}in_the_core_count", moved, "turns")
