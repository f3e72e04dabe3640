"""Interference of a borrower in another process with serving: the rows of two suites."""

import statistics
import time
from collections.abc import Callable
from typing import Final

from bench.gpu.other_process import borrowing
from bench.gpu.report import Report
from bench.gpu.shared_rows import meeting_rows
from bench.paired import PairedRatio, quantile
from bench.rows import Bar, Peer
from rose._core import CloseReason, HostGate

SEGMENT_MS: Final = 1.0
STEPS: Final = 60
PAUSES: Final = 100
CREDIT_MAX: Final = 1 << 20
# Time after a close by which the slowest device has seen it.
VISIBLE_S: Final = 0.02


class Meeting:
    """Measurements of serving beside another process, for any kind of step.

    Args:
        step_ms: runs a step of serving and returns its duration.
        gate: gate of the borrower.
    """

    def __init__(self, step_ms: Callable[[], float], gate: HostGate) -> None:
        self._step_ms, self._gate = step_ms, gate

    def steps_ms(self) -> float:
        return statistics.median(self._step_ms() for _ in range(STEPS))

    def open(self) -> None:
        self._gate.grant(CREDIT_MAX)
        self._gate.open(self._gate.close_epoch)

    def close(self) -> None:
        self._gate.close(CloseReason.ARRIVAL)

    def parked(self) -> tuple[float, float, float]:
        """Return paired durations of steps: beside a parked borrower, before and after it."""
        alone_ms = self.steps_ms()
        self.open()
        time.sleep(VISIBLE_S)
        self.close()
        time.sleep(VISIBLE_S)
        parked_ms = self.steps_ms()
        return parked_ms, alone_ms, self.steps_ms()

    def running_ms(self) -> float:
        self.open()
        try:
            return self.steps_ms()
        finally:
            self.close()

    def pauses(self) -> tuple[int, list[float]]:
        """Return how many segments started after a visible close, and the first steps in ms."""
        late, first_ms = 0, []
        for _ in range(PAUSES):
            before = self._gate.passed
            self.open()
            end_s = time.monotonic() + 1.0
            while self._gate.passed == before and time.monotonic() < end_s:
                time.sleep(1e-4)
            self.close()
            first_ms.append(self._step_ms())
            time.sleep(VISIBLE_S)
            seen = self._gate.passed
            time.sleep(2 * SEGMENT_MS * 1e-3)
            late += self._gate.passed - seen
        return late, first_ms


def report_meeting(report: Report, arm: str, meeting: Meeting) -> None:
    names = meeting_rows(arm)
    parked_ms, alone_ms, again_ms = meeting.parked()
    report.add_ratio(
        names[0],
        PairedRatio(parked_ms / alone_ms, parked_ms / again_ms, parked_ms, alone_ms),
        peer=Peer("before it ran", alone_ms * 1e3, "us"),
        bar=Bar(at_most=1.02),
    )
    slow = meeting.running_ms() / alone_ms
    report.add(names[1], slow, "ratio", peer=Peer("alone", alone_ms * 1e3, "us"))
    late, first_ms = meeting.pauses()
    report.add(names[2], late, "segments", bar=Bar(at_most=0))
    report.add(names[3], quantile(first_ms, 0.99) / alone_ms, "ratio")


def measure_arm(report: Report, arm: str, **more: str) -> None:
    from bench.gpu.lanes import Lanes
    from bench.gpu.suite_parked import ServingStep

    with report.rows(*meeting_rows(arm)):
        step_ms = ServingStep(Lanes()).timed_ms()
        gate = HostGate()
        with borrowing(gate, device="cuda:0", length_ms=SEGMENT_MS, **more):
            report_meeting(report, arm, Meeting(step_ms, gate))
