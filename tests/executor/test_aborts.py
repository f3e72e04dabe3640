"""Aborts are rationed: serving never waits for it, rollouts get on in spite of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import ManualClock
from rose.executor import Reason, Refusal
from rose.executor.aborts import AbortRation
from rose.units import NS_PER_MS, NS_PER_S
from tests.executor.conftest import SLABS, ParkedStep
from tests.waiting import wait_for

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


def test_aborts_and_nothing_else_use_the_ration_up_and_growth_waits_for_it(open_rig) -> None:
    rig = open_rig(aborts_per_s=1.0, regrow_after_ms=0.0)
    lender = rig.device.lender
    assert rig.rollout.ensure(60)
    lender.take_back(1)  # an idle slab: no step has to end for it
    assert (lender.collector.aborts, rig.rollout.retry_after_ms()) == (0, 0.0)
    step = ParkedStep(rig, rig.rollout.alloc(8))
    lender.take_back(SLABS)
    lender.take_back(SLABS)  # one step that is asked twice is aborted once
    assert lender.collector.aborts == 1
    step.may_go_on.set()
    wait_for(lambda: step.outcome == "aborted")
    assert rig.device.gate.stats().aborts == 1
    answer = rig.rollout.reserve(8)
    assert isinstance(answer, Refusal)
    assert (answer.reason, 0 < answer.retry_after_ms <= 1000) == (Reason.RESERVE_AT_RISK, True)
    assert rig.serving.ensure(SLABS * 4)  # what serving wants never waits for the ration
