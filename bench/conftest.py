"""How a suite measures and reports: one fixture on top of pytest-benchmark's."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bench.paired import Measure, PairedRatio, Pairs
from bench.rows import CONTROL, CONTROL_BAR, Bar, Peer, Term, row

_QUICK = 20  # --quick does so much less


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="few rounds: try the suite, not rose")


class Report:
    """Runs the rounds of one benchmark and hands its rows to whoever writes the JSON."""

    def __init__(self, benchmark: Any, *, is_quick: bool) -> None:
        self._benchmark = benchmark
        self._is_quick = is_quick
        self._rows: list[dict[str, Any]] = []
        self._unmeasured: list[dict[str, str]] = []
        benchmark.extra_info["rows"] = self._rows
        benchmark.extra_info["unmeasured"] = self._unmeasured

    def count(self, full: int, *, at_least: int = 3) -> int:
        """Return how many of something to do."""
        return max(at_least, full // _QUICK) if self._is_quick else full

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        peer: Peer | None = None,
        bar: Bar | None = None,
        is_void: bool = False,
        terms: Sequence[Term] = (),
    ) -> None:
        """Report a figure; `is_void` when its control says that the machine was too restless.

        One that was computed from others names them as its `terms`.
        """
        one = row(name, value, unit, peer=peer, bar=bar, is_void=is_void, terms=terms)
        self._rows.append(one)

    def leave_out(self, names: Sequence[str], reason: str) -> None:
        """Say which rows cannot be measured here, and why; nothing else may be measured then."""
        self._unmeasured += [{"name": name, "reason": reason} for name in names]
        self.once(lambda: None)  # what measures nothing at all is not written down

    def repeat(self, function: Callable[[], object], rounds: int) -> None:
        """Run `rounds` rounds of a function that keeps its own samples, after one to warm up."""
        self._benchmark.pedantic(function, rounds=self.count(rounds), warmup_rounds=1)

    def once(self, function: Callable[[], object]) -> None:
        """Run a function that keeps its own samples a single time: one that takes minutes."""
        self._benchmark.pedantic(function, rounds=1)

    def each(
        self,
        function: Callable[[], object],
        rounds: int,
        *,
        undo: Callable[[], object],
        rest: Callable[[], object] = lambda: None,
    ) -> list[int]:
        """Return how long each call took, in nanoseconds, a hundred in a round.

        `undo` runs after each call and `rest` after each round, unmeasured.
        """
        samples: list[int] = []

        def one_round() -> None:
            for _ in range(100):
                began_ns = time.perf_counter_ns()
                function()
                samples.append(time.perf_counter_ns() - began_ns)
                undo()
            rest()

        self.repeat(one_round, rounds)
        return samples

    def loop(
        self,
        function: Callable[[int], object],
        *,
        rounds: int,
        calls: int,
        undo: Callable[[], object] = lambda: None,
    ) -> float:
        """Return the median nanoseconds of a call; `function(n)` does it n times in its own loop.

        `undo` runs after each round, unmeasured.
        """
        samples: list[float] = []

        def one_round() -> None:
            began_ns = time.perf_counter_ns()
            function(calls)
            samples.append((time.perf_counter_ns() - began_ns) / calls)
            undo()

        self.repeat(one_round, rounds)
        return statistics.median(samples)

    def pairs(self, subject: Measure, peer: Measure, *, rounds: int) -> PairedRatio:
        """Return the paired ratio of two measures."""
        pairs = Pairs(subject, peer)
        self.repeat(pairs.round, rounds)
        return pairs.result()

    def add_ratio(
        self, name: str, paired: PairedRatio, *, peer: Peer, bar: Bar | None = None
    ) -> None:
        """Report a paired ratio and its control."""
        self._rows += [
            row(name, paired.ratio, "ratio", peer=peer, bar=bar, is_void=paired.is_void),
            row(CONTROL + name, paired.control, "ratio", bar=CONTROL_BAR),
        ]


@pytest.fixture
def report(benchmark: Any, request: pytest.FixtureRequest) -> Report:
    """Return what a benchmark measures with."""
    return Report(benchmark, is_quick=bool(request.config.getoption("--quick")))
