"""Cost of an open gate, and how soon rollouts stop after a close."""

import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import pytest

from bench.busy import busy_work
from bench.conftest import Report
from bench.paired import PairedRatio, timed
from bench.rows import Bar, Peer
from rose._core import CloseReason, HostGate, Verdict
from rose.errors import check

LONG_MS: Final = 60_000.0
CREDIT_MAX: Final = 1 << 30
SEGMENTS_PER_STEP: Final = 4
LENGTHS_MS: Final = (0.05, 0.3, 1.3)
DEPTHS: Final = (1, 64)
GATED_CALLS: Final = 8
MATRIX: Final = 288


def open_with(gate: HostGate, segments: int) -> None:
    gate.grant(segments)
    check(gate.open(gate.close_epoch), "something else closed this gate")


# ---- the gate's own calls


def test_gate_open_overhead_percent(report: Report) -> None:
    gate = HostGate()
    open_with(gate, CREDIT_MAX)
    left = np.random.default_rng(3).random((MATRIX, MATRIX), dtype=np.float32)
    out = np.empty_like(left)

    def work() -> None:  # a segment of a fixed amount of work, about 300 microseconds
        np.matmul(left, left, out=out)

    def gated() -> None:
        for _ in range(GATED_CALLS):
            gate.pass_(timeout_ms=LONG_MS)
            work()

    def bare() -> None:
        for _ in range(GATED_CALLS):
            work()

    paired = report.pairs(timed(gated), timed(bare), rounds=1500)
    segment_us = paired.peer * 1e-3 / GATED_CALLS
    report.add_ratio(
        "gate_open_over_bare", paired, peer=Peer("the same segments without gates", 1.0, "ratio")
    )
    report.add(
        "gate_open_overhead_percent",
        (paired.ratio - 1) * 100,
        "percent",
        peer=Peer("length of a segment", segment_us, "us"),
        bar=Bar(at_most=1.0),
    )


# ---- a borrower that is stopped at random


class Borrower:
    """A thread with waiting steps, credit for all of them, and a gate before each segment."""

    def __init__(self, length_ms: float, *, steps_in_flight: int) -> None:
        self.gate = HostGate()
        self.asked_ns = 0  # time of the last request that the gate let through at once
        self._work = busy_work(length_ms)
        self._credit = steps_in_flight * SEGMENTS_PER_STEP
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while True:
            self.gate.begin_step()
            for _ in range(SEGMENTS_PER_STEP):
                asked_ns = time.perf_counter_ns()
                while self.gate.try_pass() is None:
                    if self.gate.pass_(timeout_ms=LONG_MS) is not Verdict.PASSED:
                        self.gate.end_step()
                        return
                    # The gate decided about this request at the opening, not when the request was
                    # made.
                    break
                else:
                    self.asked_ns = asked_ns
                self._work()
            self.gate.end_step()

    def resume(self) -> None:
        open_with(self.gate, self._credit)

    def stop(self) -> None:
        self.gate.shut_down()
        self._thread.join(LONG_MS * 1e-3)
        check(not self._thread.is_alive(), "the borrower did not stop in time")

    @classmethod
    @contextmanager
    def running(cls, length_ms: float, *, steps_in_flight: int = 8) -> "Iterator[Borrower]":
        borrower = cls(length_ms, steps_in_flight=steps_in_flight)
        borrower._thread.start()
        try:
            yield borrower
        finally:
            borrower.stop()


def interrupt(borrower: Borrower, length_ms: float, rng: random.Random) -> tuple[int, bool]:
    """Close at a random moment.

    Returns:
        Time until nothing ran, in nanoseconds, and whether a segment passed a gate that it
        reached after the close had returned.
    """
    borrower.resume()
    # After one to two segments: one runs, and more are waiting.
    time.sleep(rng.uniform(1.0, 2.0) * length_ms * 1e-3)
    began_ns = time.perf_counter_ns()
    borrower.gate.close(CloseReason.ARRIVAL)
    closed_ns = time.perf_counter_ns()
    parked = borrower.gate.wait_parked(timeout_ms=LONG_MS)
    check(parked is not None, "a segment did not end")
    pause_ns = time.perf_counter_ns() - began_ns
    time.sleep(length_ms * 1e-3)  # time for a segment that must not start
    return pause_ns, borrower.asked_ns > closed_ns


def test_passed_gate_after_close(report: Report) -> None:
    rng = random.Random(11)
    passed_late = 0
    with Borrower.running(LENGTHS_MS[0]) as short, Borrower.running(LENGTHS_MS[1]) as long:

        def both() -> None:
            nonlocal passed_late
            passed_late += interrupt(short, LENGTHS_MS[0], rng)[1]
            passed_late += interrupt(long, LENGTHS_MS[1], rng)[1]

        report.repeat(both, 2000)
    report.add("passed_gate_after_close", passed_late, "segments", bar=Bar(at_most=0))


@pytest.mark.parametrize("length_ms", LENGTHS_MS)
def test_pause_p99_over_segment(report: Report, length_ms: float) -> None:
    rng = random.Random(13)
    with Borrower.running(length_ms) as borrower:
        report.repeat(lambda: interrupt(borrower, length_ms, rng), 1000)
        stats = borrower.gate.stats()
    report.add(
        f"pause_p99_over_segment_{length_ms}ms",
        stats.pause_ms_p99 / stats.segment_ms_p99,
        "ratio",
        peer=Peer("the segments themselves, p99", stats.segment_ms_p99, "ms"),
        bar=Bar(at_most=1.1),
    )


def test_pause_vs_queue_depth_ratio(report: Report) -> None:
    length_ms = LENGTHS_MS[1]
    rngs = {depth: random.Random(17) for depth in DEPTHS}
    few, many = DEPTHS
    with (
        Borrower.running(length_ms, steps_in_flight=few) as shallow,
        Borrower.running(length_ms, steps_in_flight=many) as deep,
    ):
        borrowers = {few: shallow, many: deep}

        def pauses(depth: int) -> float:
            # The same phases for both, because the latency depends on where in a segment the close
            # falls.
            state = rngs[depth]
            took = [interrupt(borrowers[depth], length_ms, state)[0] for _ in range(8)]
            return statistics.mean(took)

        pairs: PairedRatio = report.pairs(lambda: pauses(many), lambda: pauses(few), rounds=200)
    report.add_ratio(
        "pause_vs_queue_depth_ratio",
        pairs,
        peer=Peer(f"{few} step in flight instead of {many}", pairs.peer * 1e-6, "ms"),
        bar=Bar(at_most=1.1),
    )
