"""Waits for segments: the core keeps to the budget, and the verifier adds the sums up again."""

import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose._core import CertificateLog, CloseReason, Creditor, HostGate, ManualClock, ServingState
from rose.slo.log_file import read_log
from rose.slo.verify import Verification, verify_log
from tests.known_model import known_model
from tests.reference.log_bytes import MS, LogBytes

IDLE, TRIAL = 0, 2
WINDOW_NS = 600_000 * MS
BUDGET_MS = 0.4
RUNNING_AT = 24  # word of the gate, see docs/protocol.md
PAUSES_S = st.sampled_from((0.0, 0.001, 1.0, 59.0, 299.5, 599.0, 600.0, 601.0, 5000.0))


class Device:
    """A gate whose `running` word a test sets, and a log with a tiny wait budget."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.log = CertificateLog(
            str(path),
            ttft_ms=500,
            tpot_ms=500,
            epsilon=0.05,
            signal_ms=0.01,
            blocking_ms=100,
            heartbeat_ttl_ms=1e9,
            max_segments=4,
            slabs=10,
            partitions=2,
            blocks_per_slab=8,
            wait_budget_ms=BUDGET_MS,
            park_wait_ms=0.3,
            clock=self.clock,
        )
        self.gate = HostGate(clock=self.clock)
        state = ServingState(self.log, gate=self.gate)
        state.beat()
        self.creditor = Creditor(
            self.gate,
            state,
            known_model(prior_ms=(5, 0, 0, 0, 0), epsilon=0.05, adaptation=0.01, window=64),
            self.log,
            largest_step=(1, 64, 0),
            largest_chunk=(0, 0, 256),
            segment_prior_ms=0.05,
            segment_share=0.99,
            poll_ms=1,
            retry_ms=1,
            clock=self.clock,
        )
        self.gate.begin_step()
        self.page = mmap.mmap(self.gate.fileno(), os.fstat(self.gate.fileno()).st_size)

    def set_running(self, *, is_running: bool) -> None:
        self.page[RUNNING_AT : RUNNING_AT + 4] = struct.pack("<I", is_running)

    def wait(self, *, is_running: bool) -> None:
        self.set_running(is_running=is_running)
        self.creditor.wait_parked(borrower=1)
        self.set_running(is_running=False)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(PAUSES_S, st.booleans(), st.booleans()), min_size=1, max_size=25))
def test_excess_in_any_ten_minutes_is_within_the_budget(
    waits: list[tuple[float, bool, bool]],
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        device = Device(path)
        for pause_s, is_granted, is_running in waits:
            device.clock.advance(int(pause_s * 1000) * MS)
            if is_granted:
                device.creditor.look()
                device.gate.close(CloseReason.STEP)
            device.wait(is_running=is_running)
        device.log.close()
        verification = verify_log(path)
        assert verification.violations == []
        _, records = read_log(path)
        excesses = [
            (one.time_ns, max(one.fields["waited_ns"] - one.fields["certified_ns"], 0))
            for one in records
            if one.kind == "WAITED"
        ]
        assert len(excesses) == len(waits)
        for end_ns, _ in excesses:
            begin_ns = end_ns - WINDOW_NS
            window_ns = sum(ns for time_ns, ns in excesses if begin_ns < time_ns <= end_ns)
            assert window_ns <= BUDGET_MS * MS


def verified(log: LogBytes, folder: Path) -> Verification:
    return verify_log(log.save(folder / "log"))


def test_sums_are_those_of_the_records(tmp_path: Path) -> None:
    log = LogBytes()
    log.quantum(IDLE)
    log.waited(106 * MS, certified_ns=6 * MS)
    log.wait(10_000)
    log.waited(300 * MS)
    log.wait(595_000)
    log.left_ns += 100 * MS  # The first excess is more than ten minutes old.
    log.waited(50 * MS)
    log.evicted(350 * MS)
    verification = verified(log, tmp_path)
    waits = verification.waits
    assert verification.violations == []
    assert (waits.count, waits.excess_ns, waits.evicted) == (3, 450 * MS, 1)
    assert (waits.worst_ns, waits.worst_at_ns) == (400 * MS, 11_000 * MS)
    assert waits.windows == [(1_000 * MS, 400 * MS, 2), (606_000 * MS, 50 * MS, 1)]


def covered_twice(log: LogBytes) -> None:
    log.quantum(IDLE)
    log.waited(6 * MS, certified_ns=6 * MS)
    log.waited(6 * MS, certified_ns=6 * MS)


def covered_before_a_step(log: LogBytes) -> None:
    log.quantum(IDLE)
    log.wait(5)
    log.step(3)
    log.waited(6 * MS, certified_ns=6 * MS)


def beyond_the_budget(log: LogBytes) -> None:
    log.waited(600 * MS)
    log.waited(600 * MS, left_ns=-200 * MS)


def forgotten_too_early(log: LogBytes) -> None:
    log.waited(600 * MS)
    log.wait(599_000)
    log.waited(0, left_ns=1_000 * MS)


def hidden_cost(log: LogBytes) -> None:
    log.waited(600 * MS)
    log.quantum(IDLE, wait_ms=6.0)


def trial_without_a_budget(log: LogBytes) -> None:
    log.waited(600 * MS)
    log.quantum(TRIAL, segments=1, segment_upper_ms=500.0)


def trial_of_two_segments(log: LogBytes) -> None:
    log.quantum(TRIAL, segments=2, segment_upper_ms=200.0)


def another_borrower(log: LogBytes) -> None:
    log.waited(0, borrower=2)


def eviction_without_waits(log: LogBytes) -> None:
    log.evicted(1_000 * MS)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (covered_twice, "no certificate since the last step and wait allows this"),
        (covered_before_a_step, "no certificate since the last step and wait allows this"),
        (beyond_the_budget, "600000000 ns beyond the certificate, but the budget had 400000000 ns"),
        (forgotten_too_early, "left_ns is 1000000000, but 400000000 ns are left"),
        (hidden_cost, "wait_ms is 6.0, but 406.0 follows from the budget"),
        (trial_without_a_budget, "a trial may cost 501.0 ms, but the wait budget has 400.0 ms"),
        (trial_of_two_segments, "a trial must be a single segment"),
        (another_borrower, "borrower 2 does not exist"),
        (eviction_without_waits, "spent_ns is 1000000000, but the waits sum to 0 ns"),
    ],
)
def test_forged_waits_are_found(
    tmp_path: Path, write: Callable[[LogBytes], None], says: str
) -> None:
    log = LogBytes()
    write(log)
    violations = verified(log, tmp_path).violations
    assert len(violations) == 1
    assert says in violations[0]
