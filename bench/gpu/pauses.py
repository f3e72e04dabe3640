"""How long the borrower's work continues after a close, and whether a segment starts after it."""

import random
import sys
import time
from typing import Any, Final

from bench.gpu.lanes import Borrower, Lanes, Running, spin_until
from bench.gpu.report import Report
from bench.gpu.timing import fresh_seed
from bench.paired import quantile
from bench.rows import Bar, Peer
from rose.errors import check

LENGTHS_MS: Final = (0.1, 0.33, 1.3)
WINDOWS: Final = (1, 4, 16, 64)
SAMPLES: Final = 300
WARM_UP: Final = 10
# Time after which every device has seen a store of the host; a later segment started after the
# close.
VISIBLE_NS: Final = 100_000
# The longest time for which a polling thread keeps the interpreter lock while the borrower's thread
# waits for it; the default, five milliseconds, is longer than a segment.
SWITCH_S: Final = 20e-6
LIMIT_NS: Final = 5_000_000_000
BAR: Final = Bar(at_most=1.1)


def pause_row(kind: str, length_ms: float, window: int | None) -> str:
    depth = "" if window is None else f"_{window}_deep"
    return f"pause_p99_over_segment_{kind}_{length_ms}ms{depth}"


def late_row(kind: str) -> str:
    return f"passed_after_close_{kind}"


def rows_of(kind: str, windows: tuple[int | None, ...]) -> tuple[str, ...]:
    pauses = (pause_row(kind, length, window) for length in LENGTHS_MS for window in windows)
    return (*pauses, late_row(kind))


class Interrupts:
    """Closes the gate of a running borrower at random moments."""

    def __init__(self, borrower: Borrower, length_ms: float, rng: random.Random) -> None:
        self._borrower = borrower
        self._length_ms = length_ms
        self._rng = rng
        self.pauses_ms: list[float] = []
        self.lengths_ms: list[float] = []
        self.late = 0  # segments that started after the device had seen a close

    def once(self) -> None:
        borrower = self._borrower
        before = borrower.host.passed
        borrower.open()
        spin_until(lambda: borrower.host.passed != before, nap_s=20e-6)
        # A segment runs now. The close comes after the length of one to two segments.
        time.sleep(self._rng.uniform(1.0, 2.0) * self._length_ms * 1e-3)
        began_ns = time.perf_counter_ns()
        borrower.close()
        self._settle(began_ns)

    def _settle(self, began_ns: int) -> None:
        """Find the end of the last segment that started before the close was visible."""
        borrower = self._borrower
        at_close = running = borrower.host.passed
        ended_ns = 0
        while ended_ns == 0 or time.perf_counter_ns() - began_ns <= VISIBLE_NS:
            now_ns, passed = time.perf_counter_ns(), borrower.host.passed
            if passed != running:
                running, ended_ns = passed, 0
            if now_ns - began_ns <= VISIBLE_NS:
                at_close = passed
            if ended_ns == 0 and borrower.has_ended(running):
                ended_ns = now_ns
            check(now_ns - began_ns < LIMIT_NS, "the segment that ran at the close did not end")
        # Time for a segment that must not start.
        time.sleep(max(self._length_ms, 1.0) * 1e-3)
        self.late += borrower.host.passed - at_close
        self.pauses_ms.append((ended_ns - began_ns) * 1e-6)
        self.lengths_ms.append(borrower.length_ms(running))


def measure_kind(
    report: Report, lanes: Lanes, kind: Any, name: str, windows: tuple[int | None, ...]
) -> None:
    """Report every length and window of one kind of gate; None for a gate without windows."""
    sys.setswitchinterval(SWITCH_S)
    rng = random.Random(fresh_seed(f"pauses, {name}"))
    late: list[int] = []
    for window in windows:
        for length_ms in LENGTHS_MS:
            row = pause_row(name, length_ms, window)
            with report.rows(row):
                borrower = lanes.borrower(kind, window=window or 1)
                interrupts = Interrupts(borrower, length_ms, rng)
                with Running.of(borrower, length_ms):
                    for _ in range(WARM_UP + SAMPLES):
                        interrupts.once()
                late.append(interrupts.late)
                _report(report, row, interrupts)
    with report.rows(late_row(name)):
        check(len(late) == len(windows) * len(LENGTHS_MS), "not every pause was measured")
        report.add(late_row(name), sum(late), "segments", bar=Bar(at_most=0))


def _report(report: Report, row: str, interrupts: Interrupts) -> None:
    segment_ms = quantile(interrupts.lengths_ms[WARM_UP:], 0.99)
    report.add(
        row,
        quantile(interrupts.pauses_ms[WARM_UP:], 0.99) / segment_ms,
        "ratio",
        peer=Peer("the segments themselves, p99", segment_ms, "ms"),
        bar=BAR,
    )
