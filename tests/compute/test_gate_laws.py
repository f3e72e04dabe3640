"""What holds of the gate in every order of calls, and against faults: bits, clocks, processes."""

import mmap
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rose._core import CloseReason, HostGate, ManualClock, Verdict
from tests.compute.gate_processes import (
    HANG_S,
    borrow,
    process_of,
    send_fd,
)

EPOCHS = 2**32
# Offsets and sizes of csrc/compute/gate_word.h.
FIELDS = {
    "state": (0, 8),
    "closed_at_ns": (8, 8),
    "credit": (16, 4),
    "passed": (20, 4),
    "running": (24, 4),
    "bell": (28, 4),
    "demand": (32, 4),
    "step": (36, 4),
    "close_reason": (40, 4),
    "low_water": (44, 4),
    "shut_down": (48, 4),
    "magic": (52, 4),
    "overdue": (56, 4),
    "reserved": (60, 4),
}


@contextmanager
def page_of(gate: HostGate) -> Iterator[mmap.mmap]:
    size = os.fstat(gate.fileno()).st_size
    with mmap.mmap(gate.fileno(), size) as page:
        yield page


def start_at_epoch(gate: HostGate, epoch: int) -> None:
    with page_of(gate) as page:
        page[0:8] = (epoch << 32).to_bytes(8, "little")


class GateMachine(RuleBasedStateMachine):
    """A gate and what it should be: an open bit, an epoch, a credit, a step, a segment."""

    @initialize(
        first=st.sampled_from([0, 2**31 - 2, 2**32 - 2]),
        epoch=st.sampled_from([0, EPOCHS - 3]),
    )
    def create(self, first: int, epoch: int) -> None:
        self.clock = ManualClock()
        self.gate = HostGate(first_segment=first, clock=self.clock)
        start_at_epoch(self.gate, epoch)
        self.epoch, self.open_, self.left, self.passed = epoch, False, 0, first
        self.runs = self.in_step = self.abort = self.is_shut_down = False

    @rule()
    def begin_step(self) -> None:
        self.gate.begin_step()
        self.in_step, self.abort = True, False

    @rule()
    def end_step(self) -> None:
        self.gate.end_step()
        self.in_step = self.abort = self.runs = False

    @rule(times=st.integers(1, 5))
    def try_pass(self, times: int) -> None:
        for _ in range(times):
            assert self.gate.try_pass() is self.told()

    def told(self) -> Verdict | None:
        self.runs = False
        if self.is_shut_down:
            return Verdict.SHUT_DOWN
        if self.abort:
            self.abort = False
            return Verdict.ABORTED
        if not self.open_ or self.left == 0:
            return None
        self.left, self.runs = self.left - 1, True
        self.passed = (self.passed + 1) % 2**32
        return Verdict.PASSED

    @rule(segments=st.integers(0, 6))
    def grant(self, segments: int) -> None:
        self.gate.grant(segments)
        self.left = max(self.left, segments)

    @rule(age=st.sampled_from([0, 0, 0, 1, 2, EPOCHS - 1]))
    def open_gate(self, age: int) -> None:
        opens = age == 0 and not self.is_shut_down
        assert self.gate.open((self.epoch - age) % EPOCHS) == opens
        self.open_ = self.open_ or opens

    @rule(reason=st.sampled_from([CloseReason.ARRIVAL, CloseReason.REVOCATION]))
    def close(self, reason: CloseReason) -> None:
        self.gate.close(reason)
        self.epoch, self.open_ = (self.epoch + 1) % EPOCHS, False

    @rule(within_ms=st.sampled_from([0.0, 1.0, 1e6]))
    def expect_arrival(self, within_ms: float) -> None:
        self.gate.expect_arrival(within_ms=within_ms)
        self.epoch, self.open_ = (self.epoch + 1) % EPOCHS, False

    @rule()
    def abort_step(self) -> None:
        assert self.gate.abort_step() == self.in_step
        self.abort = self.in_step

    @rule()
    def shut_down(self) -> None:
        self.gate.shut_down()
        self.is_shut_down = True
        self.epoch, self.open_ = (self.epoch + 1) % EPOCHS, False

    @rule(hours=st.integers(0, 1000))
    def the_clock_steps(self, hours: int) -> None:
        self.clock.advance(hours * 3_600_000_000_000)

    @invariant()
    def it_is_what_it_should_be(self) -> None:
        if not hasattr(self, "gate"):
            return
        assert self.gate.is_open() == self.open_
        assert self.gate.close_epoch == self.epoch
        assert self.gate.credit_left == self.left
        assert self.gate.passed == self.passed
        assert self.gate.is_running() == self.runs
        assert self.gate.is_in_step() == self.in_step
        assert self.gate.is_shut_down() == self.is_shut_down


GateMachine.TestCase.settings = settings(stateful_step_count=50)
TestGate = GateMachine.TestCase


@pytest.mark.parametrize("field", FIELDS)
def test_a_close_stops_the_borrower_whatever_the_page_holds(field: str) -> None:
    """Random bits in one word, both sides running: nobody crashes, hangs, or runs on."""
    chance = random.Random(field)
    at, size = FIELDS[field]
    gate = HostGate()
    counted = os.memfd_create("count")
    os.ftruncate(counted, mmap.PAGESIZE)
    with process_of(borrow) as (process, conn), page_of(gate) as page:
        send_fd(conn, gate.fileno())
        send_fd(conn, counted)
        with mmap.mmap(counted, mmap.PAGESIZE) as count_page:

            def count() -> int:
                return int.from_bytes(count_page[0:8], "little")

            for _ in range(30):
                gate.grant(4)
                gate.open(gate.close_epoch)
                wild = int.from_bytes(page[at : at + size], "little")
                wild ^= chance.getrandbits(8 * size) & chance.getrandbits(8 * size)
                page[at : at + size] = wild.to_bytes(size, "little")
                time.sleep(chance.random() * 0.002)
                gate.close(CloseReason.ARRIVAL)
                assert not gate.is_open()
                gate.wait_parked(timeout_ms=2)  # Tells nothing when `running` was hit, but returns.
                before = count()
                gate.wait_parked(timeout_ms=2)
                # One whose gate it had passed when the close came, but not counted yet.
                assert count() <= before + 1
            gate.shut_down()
            conn.send("end")
            assert conn.poll(HANG_S)
            assert conn.recv() == count()
        process.join(HANG_S)
        assert process.exitcode == 0
    os.close(counted)
