"""Aborts are rationed: serving never waits for it, rollouts get on in spite of them."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import ManualClock
from rose.errors import StepAborted
from rose.executor import SLO, CoServing, Policy, Quantum, Reason, Refusal
from rose.executor.aborts import AbortRation
from rose.units import NS_PER_MS, NS_PER_S
from tests.executor.conftest import CALM, HEADERS, ROLLOUT_KV, SERVING_KV, SLAB, SLABS, ParkedStep
from tests.known_model import confirm
from tests.waiting import wait_for

STEP_MS = 20
WISH_BLOCKS = 24  # of the borrower: three slabs


# ---- the bucket ----------------------------------------------------------------------------------


@given(
    per_s=st.floats(0.1, 20.0),
    gaps_ms=st.lists(st.integers(0, 3000), min_size=1, max_size=200),
    greed=st.lists(st.integers(1, 4), min_size=1, max_size=20),
)
def test_whoever_grows_only_when_it_may_aborts_no_more_than_the_ration(
    per_s, gaps_ms, greed
) -> None:
    clock = ManualClock()
    ration = AbortRation(per_s=per_s, clock=clock)
    at_ns, beyond_the_first = 0, 0
    for turn, gap_ms in enumerate(gaps_ms):
        clock.advance(gap_ms * NS_PER_MS)
        at_ns += gap_ms * NS_PER_MS
        if ration.wait_ms() > 0:
            continue
        wanted = greed[turn % len(greed)]  # slabs of one loan that are asked for one by one
        for _ in range(wanted):
            ration.aborted()
        beyond_the_first = max(beyond_the_first, wanted - 1)
        allowed = max(1.0, per_s) + per_s * at_ns / NS_PER_S
        # What one loan cost beyond its first is made up for before the next one goes out.
        assert ration.count <= allowed + beyond_the_first + 1e-6


@given(per_s=st.floats(0.1, 20.0), aborts=st.integers(0, 60))
def test_growth_is_held_off_for_as_long_as_is_made_up_for_and_no_longer(per_s, aborts) -> None:
    clock = ManualClock()
    ration = AbortRation(per_s=per_s, clock=clock)
    for _ in range(aborts):
        ration.aborted()
    overdrawn = aborts + 1 - max(1.0, per_s)
    assert ration.wait_ms() == pytest.approx(max(0.0, overdrawn / per_s * 1000), abs=1e-6)
    clock.advance(math.ceil(ration.wait_ms() * NS_PER_MS))
    assert ration.wait_ms() == pytest.approx(0.0, abs=1e-5)


def test_quiet_times_are_not_saved_up_beyond_one_second() -> None:
    clock = ManualClock()
    ration = AbortRation(per_s=4.0, clock=clock)
    clock.advance(3600 * NS_PER_S)
    for _ in range(4):
        assert ration.wait_ms() == 0
        ration.aborted()
    assert ration.wait_ms() == pytest.approx(250.0)


def test_time_that_comes_twice_fills_the_bucket_once() -> None:
    clock = ManualClock()
    ration = AbortRation(per_s=1.0, clock=clock)
    ration.aborted()
    for _ in range(10):
        clock.advance(100 * NS_PER_MS)
        assert ration.wait_ms() == pytest.approx(900.0)
        clock.advance(-100 * NS_PER_MS)
        assert ration.wait_ms() == pytest.approx(900.0)


# ---- the lender ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    kept: int = 0  # steps on borrowed slabs that were not rolled back: their tokens stay
    aborted: int = 0


class Trace:
    """A borrower that wants three slabs, and serving that wants them whenever a step pins them.

    In virtual time, in one thread: only the creditor's and the keeper's run beside it.
    """

    def __init__(self, **knobs) -> None:
        self.clock = ManualClock()
        self.device = CoServing.open(
            "cpu",
            pool_bytes=(SLABS + HEADERS) * SLAB,
            slab_bytes=SLAB,
            policy=Policy(**{**CALM, "regrow_after_ms": 0.0, "heartbeat_ttl_ms": 1e8, **knobs}),
            clock=self.clock,
        )
        self.serving = self.device.serving(
            SERVING_KV,
            slo=SLO(ttft_ms=20_000, tpot_ms=1000),
            reserve_bytes=2 * SLAB,
            step_tokens=32,
            request_tokens=64,
        )
        confirm(self.device._parts.model, 32)
        self.lane = self.device.rollout(ROLLOUT_KV, limit_bytes=SLABS * SLAB)
        self.lane.on_revoke = lambda revocation: revocation.begin(())
        self.held: list[int] = []
        self.tally = Tally()

    def wish(self) -> None:
        """Borrow, unless it has something, or may not; serving has no use for slabs just now."""
        self.serving.settle()
        if not self.held and self.lane.ensure(WISH_BLOCKS):
            self.held = self.lane.alloc(WISH_BLOCKS)

    def quantum(self) -> Quantum:
        granted: list[Quantum] = []

        def ask() -> bool:
            answer = self.lane.try_step(timeout_ms=50)
            granted.extend([answer] if isinstance(answer, Quantum) else [])
            return bool(granted)

        wait_for(ask)
        return granted[0]

    def step(self, *, is_asked_for: bool) -> None:
        """Run one step; serving wants all that is lent while it is in its first segment."""
        with self.quantum():
            pin = self.lane.pin(self.held)
            if is_asked_for:
                self.device.lender.take_back(SLABS)
            try:
                self.lane.gate()
                self.tally.kept += bool(self.held)
            except StepAborted:
                self.tally.aborted += 1
                self.lane.kv.allocator.free(self.held)
                self.held = []
            self.lane.unpin(pin)
        self.clock.advance(STEP_MS * NS_PER_MS)

    @property
    def lent(self) -> int:
        return self.device.arbiter.snapshot().partitions[1].held

    def close(self) -> None:
        self.lane.kv.allocator.free(self.held)
        self.device.close()
        self.device.arbiter.check_invariants()


def run(trace: Trace, *, steps: int, every: int) -> None:
    for number in range(steps):
        trace.wish()
        trace.step(is_asked_for=number % every == every - 1)
        if trace.lane.slabs() == []:
            assert trace.lent == 0  # What serving wants is there, whatever was used up.


def test_slabs_that_are_wanted_again_and_again_cost_no_more_than_the_ration() -> None:
    trace = Trace(aborts_per_s=5.0)
    steps = 500
    run(trace, steps=steps, every=3)
    seconds = steps * STEP_MS / 1000
    assert 5.0 < trace.tally.aborted <= 5.0 + 5.0 * seconds  # 166 without a ration
    assert trace.tally.aborted == trace.device.lender.collector.aborts
    assert trace.tally.kept > trace.tally.aborted
    trace.close()


def test_a_used_up_ration_holds_the_next_loan_off_and_says_for_how_long() -> None:
    trace = Trace(aborts_per_s=1.0)
    trace.wish()
    trace.step(is_asked_for=True)
    assert trace.device.lender.collector.aborts == 1
    answer = trace.lane.reserve(8)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.RESERVE_AT_RISK
    assert answer.retry_after_ms == pytest.approx(1000 - STEP_MS)
    trace.clock.advance(NS_PER_S)
    trace.serving.settle()
    assert trace.lane.ensure(8)
    trace.close()


def test_what_serving_wants_never_waits_for_the_ration() -> None:
    trace = Trace(aborts_per_s=0.001)
    trace.wish()
    trace.step(is_asked_for=True)
    assert trace.lane.retry_after_ms() > 0
    assert trace.lent == 0
    assert trace.serving.ensure(SLABS * 4)
    trace.close()


def test_revocations_without_an_abort_use_nothing_up() -> None:
    trace = Trace(aborts_per_s=1.0)
    for _ in range(5):
        trace.wish()
        trace.lane.kv.allocator.free(trace.held)
        trace.held = []
        trace.device.lender.take_back(SLABS)
        assert trace.lent == 0
    assert trace.device.lender.collector.aborts == 0
    assert trace.lane.retry_after_ms() == 0
    trace.close()


def test_one_step_that_is_asked_twice_is_aborted_once(open_rig) -> None:
    rig = open_rig(aborts_per_s=1.0)
    step = ParkedStep(rig, rig.borrow(60))
    lender = rig.device.lender
    lender.take_back(1)
    lender.take_back(1)
    assert [one.aborted_steps for one in rig.revocations] == [1, 1]
    assert lender.collector.aborts == 1
    step.may_go_on.set()
    wait_for(lambda: step.outcome)
    assert step.outcome == "aborted"
    assert rig.device.gate.stats().aborts == 1
