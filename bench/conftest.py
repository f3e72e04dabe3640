"""How a suite measures and reports: one fixture based on pytest-benchmark's.

Each row is printed and written as soon as it is known (`--document`). Without `--full`, a
benchmark's rounds end when its share of the suite's time is over; the interval beside a ratio shows
the resulting precision.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from bench.document import NOT_REACHED, Document
from bench.paired import Measure, PairedRatio, Pairs
from bench.rows import CONTROL, CONTROL_BAR, Bar, Peer, Term, row, said_of

_QUICK: Final = 20  # --quick divides counts by this
# Seconds of rounds in a suite without --full. All else takes as long again: inputs, processes,
# warm-up, and benchmarks of five slow rounds.
_SUITE_S: Final = 180.0
_ROUNDS_MIN: Final = 5
_DOCUMENT: Final = pytest.StashKey[Document]()
_ROUNDS_S: Final = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="few rounds: the figures mean little")
    parser.addoption("--full", action="store_true", help="all rounds, however long they take")
    parser.addoption("--document", type=Path, help="JSON file with a head, to add rows to")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_DOCUMENT] = Document(config.getoption("--document"))
    config.stash[_ROUNDS_S] = math.inf


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        is_late = item.get_closest_marker("slow") and not item.config.getoption("--full")
        reason = "only FULL=1 measures it" if is_late else "it was not selected"
        item.config.stash[_DOCUMENT].leave_out([item.nodeid], reason)


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    config.stash[_DOCUMENT].leave_out([item.nodeid for item in session.items], NOT_REACHED)
    if not config.getoption("--full"):
        config.stash[_ROUNDS_S] = _SUITE_S / max(1, len(session.items))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.config.stash[_DOCUMENT].begun(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Remove a benchmark from the list of open ones, or record why it has no rows."""
    report: pytest.TestReport = yield
    document = item.config.stash[_DOCUMENT]
    if report.skipped and isinstance(report.longrepr, tuple):
        document.leave_out([item.nodeid], report.longrepr[2].removeprefix("Skipped: "))
    elif report.failed:
        document.leave_out([item.nodeid], f"it failed in its {report.when}")
    elif report.when == "call":
        document.finished(item.nodeid)
    return report


class Report:
    """Runs the rounds of one benchmark and reports its rows one by one."""

    def __init__(self, benchmark: Any, config: pytest.Config) -> None:
        self._benchmark = benchmark
        self._is_quick = bool(config.getoption("--quick"))
        self.is_full = bool(config.getoption("--full"))
        self._rounds_s = config.stash[_ROUNDS_S]
        self._document = config.stash[_DOCUMENT]
        self._terminal: Any = config.pluginmanager.get_plugin("terminalreporter")

    def _add(self, one: dict[str, Any]) -> None:
        self._document.add(one)
        self.say(said_of(one))

    def say(self, line: str) -> None:
        """Print a line of progress."""
        self._terminal.ensure_newline()
        self._terminal.write_line(f"  {line}")

    def count(self, full: int, *, at_least: int = 3, brief: int | None = None) -> int:
        """Return `full`, or `brief` without --full, or a small part of `full` with --quick."""
        if self._is_quick:
            return max(at_least, full // _QUICK)
        return full if self.is_full or brief is None else brief

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
        interval: tuple[float, float] | None = None,
    ) -> None:
        """Report a figure; `is_void` if its control shows that the machine was too busy.

        A computed figure lists its `terms`. With 95 % confidence the true value is in `interval`.
        """
        self._add(
            row(
                name,
                value,
                unit,
                peer=peer,
                bar=bar,
                is_void=is_void,
                terms=terms,
                interval=interval,
            )
        )

    def leave_out(self, names: Iterable[str], reason: str) -> None:
        """Report rows that cannot be measured here, with the reason."""
        self._document.leave_out(names, reason)

    def repeat(self, function: Callable[[], object], rounds: int) -> None:
        """Run rounds of a function that keeps its own samples, after a warm-up round.

        Args:
            function: one round.
            rounds: number of rounds; without --full as many as time permits, but at least five.
        """

        def all_rounds() -> None:
            function()
            end_s = time.monotonic() + self._rounds_s
            for number in range(self.count(rounds)):
                if number >= _ROUNDS_MIN and time.monotonic() > end_s:
                    break
                function()

        self.once(all_rounds)

    def once(self, function: Callable[[], object]) -> None:
        """Run a function once; it takes minutes and keeps its own samples."""
        self._benchmark.pedantic(function, rounds=1)

    def pairs(self, subject: Measure, peer: Measure, *, rounds: int) -> PairedRatio:
        """Return the paired ratio of two measures."""
        pairs = Pairs(subject, peer)
        self.repeat(pairs.round, rounds)
        return pairs.result()

    def add_ratio(
        self, name: str, paired: PairedRatio, *, peer: Peer, bar: Bar | None = None
    ) -> None:
        """Report a paired ratio and its control."""
        control = row(CONTROL + name, paired.control, "ratio", bar=CONTROL_BAR)
        self._add(control)  # first, because a ratio without its control is meaningless
        self._add(
            row(
                name,
                paired.ratio,
                "ratio",
                peer=peer,
                bar=bar,
                is_void=paired.is_void,
                interval=paired.interval,
            )
        )


@pytest.fixture
def report(benchmark: Any, request: pytest.FixtureRequest) -> Report:
    """Return the fixture with which a benchmark measures and reports."""
    return Report(benchmark, request.config)
