"""Cost to serving of borrowers that do harm, and what an honest borrower loses to the protection.

Each device has a serving engine of its own, all side by side for the same time. With `--full` this
is ten minutes, the window of the wait budget.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.conftest import Report
from bench.harming import Harm, MeasuredServing, Supervisor, supervised
from bench.rows import Bar, Term
from rose.errors import check

_END_S: Final = 120.0  # longest time to close all devices
# Enough for any wait of a run: as if there were no budget.
_UNLIMITED: Final = {"wait_budget_ms": 1e9}
# (name, kind of borrower, TTFT target in ms, arguments). The kinds are functions of
# `bench.harming`. "respawn" means that a supervisor restarts the borrower at once, as it does with
# all of them.
_HARMFUL: Final[tuple[tuple[str, str, float, tuple[str, ...]], ...]] = (
    ("drip_950_ms", "drip", 2000.0, ("0.95",)),
    ("drip_150_ms", "drip", 200.0, ("0.15",)),
    ("respawn", "scribble", 2000.0, ()),
    ("stuck", "stuck", 200.0, ()),
)


@dataclass(slots=True)
class Run:
    """A device, its borrower, and the result."""

    serving: MeasuredServing
    borrower: Supervisor
    harm: Harm | None = None
    starts: int = 0
    segments: int = 0

    def run(self, seconds: float) -> None:
        """Serve, then stop the borrower and close the device."""
        self.serving.serve(seconds)
        self.starts, self.segments = self.borrower.starts, self.borrower.segments
        self.borrower.stop()
        self.harm = self.serving.close()


def side_by_side(runs: dict[str, Run], seconds: float) -> None:
    """Run all devices at the same time."""
    threads = [threading.Thread(target=one.run, args=(seconds,)) for one in runs.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + _END_S)


def test_harm(report: Report, tmp_path: Path) -> None:
    seconds = float(report.count(600, at_least=10, brief=60))
    runs: dict[str, Run] = {}

    def measure() -> None:
        with ExitStack() as borrowers:

            def start(name: str, kind: str, ttft_ms: float, *arguments: str, **policy: Any) -> None:
                serving = MeasuredServing(tmp_path / name, ttft_ms=ttft_ms, **policy)
                borrower = supervised(kind, serving.path, *arguments)
                runs[name] = Run(serving, borrowers.enter_context(borrower))

            for name, kind, ttft_ms, arguments in _HARMFUL:
                start(name, kind, ttft_ms, *arguments)
            start("honest", "honest", 200.0)
            start("unprotected", "honest", 200.0, **_UNLIMITED)
            start("unprotected_again", "honest", 200.0, **_UNLIMITED)
            side_by_side(runs, seconds)

    report.once(measure)
    for name, *_ in _HARMFUL:
        add_harm(report, name, runs[name], seconds)
    add_kept(report, lambda name: runs[name])


def add_harm(report: Report, name: str, run: Run, seconds: float) -> None:
    """Report the waits beyond certified segments, in the worst ten minutes of the log."""
    harm = run.harm
    check(harm is not None, f"{name} has no result")
    if harm is None:
        return
    check(harm.verification.violations == [], f"{name}: {harm.verification.violations[:1]}")
    waited = Term("measured by the engine", harm.beyond_ms, "ms")
    longest = Term("longest wait", max(harm.waits_ms, default=0.0), "ms")
    report.add(
        f"harm_{name}_waited_beyond_ms",
        harm.worst_ms,
        "ms",
        bar=Bar(at_most=1000.0),
        terms=(
            waited,
            longest,
            Term("waits", len(harm.waits_ms), "count"),
            Term("evictions", harm.verification.waits.evicted, "count"),
            Term("starts of the borrower", run.starts, "count"),
            Term("time", seconds, "s"),
        ),
    )


def add_kept(report: Report, of: Callable[[str], Run]) -> None:
    """Report the segments of an honest borrower over those of one without a wait budget."""
    honest, free, again = (of(name) for name in ("honest", "unprotected", "unprotected_again"))
    report.add("harm_honest_control_share", again.segments / free.segments, "share")
    harm = honest.harm
    report.add(
        "harm_honest_segments_kept_share",
        honest.segments / free.segments,
        "share",
        bar=Bar(at_least=0.95),
        terms=(
            Term("segments", honest.segments, "count"),
            Term("segments without a budget", free.segments, "count"),
            Term("waited beyond certificates", 0.0 if harm is None else harm.worst_ms, "ms"),
            Term("evictions", 0 if harm is None else harm.verification.waits.evicted, "count"),
        ),
    )
