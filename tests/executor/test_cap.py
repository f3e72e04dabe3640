"""The cap on what a device lends: no growth over it, slabs over it come home, and it ends."""

import math
from dataclasses import replace

import pytest

from rose._core import Grant, ManualClock
from rose.errors import InvalidArgument, Unavailable
from rose.executor import SLO, CoServing, Reason
from rose.executor.reading import ShapeEvidence
from rose.executor.revocation import Cause
from rose.units import NS_PER_MS
from tests.executor.conftest import SLAB, SLABS, ParkedStep, Rig
from tests.waiting import wait_for

BLOCKS = 8  # of the borrower in a slab
EVER = math.inf


def cap(rig: Rig, slabs: int, *, ttl_ms: float = EVER) -> None:
    rig.device.lend_at_most(slabs * SLAB, ttl_ms=ttl_ms)


def borrow(rig: Rig, slabs: int) -> None:
    """Have the borrower use that many slabs in full."""
    rig.held += rig.borrow(slabs * BLOCKS)
    assert rig.counts()[1] == slabs


def refused(rig: Rig) -> Reason:
    return rig.device.lender.grow(1).reason


# ---- growth --------------------------------------------------------------------------------------


def test_growth_ends_at_the_cap_and_the_borrower_hears_when_it_rises(open_rig) -> None:
    rig = open_rig()
    rooms = []
    rig.rollout.on_room = lambda: rooms.append(rig.counts())
    rig.device.lend_at_most(3 * SLAB + SLAB - 1, ttl_ms=EVER)  # whole slabs count
    assert isinstance(rig.device.lender.grow(1000), Grant)
    assert rig.counts()[1] == 3
    assert refused(rig) is Reason.OVER_LIMIT
    assert rooms == []
    cap(rig, 3)  # renewed as it is
    assert rooms == []
    cap(rig, 5)
    assert len(rooms) == 1
    assert isinstance(rig.device.lender.grow(1000), Grant)
    assert rig.counts()[1] == 5


def test_late_slabs_count_as_lent(open_rig) -> None:
    rig = open_rig(revoke_ms=1.0, regrow_after_ms=0.0)
    borrow(rig, 4)
    rig.rollout.pin(rig.held)  # for ever
    cap(rig, 2)
    wait_for(lambda: rig.counts()[3] == 2)
    assert rig.counts()[1] == 2
    assert refused(rig) is Reason.OVER_LIMIT
    cap(rig, 4)
    assert refused(rig) is Reason.OVER_LIMIT
    cap(rig, 5)
    assert isinstance(rig.device.lender.grow(1000), Grant)
    assert rig.counts()[1] == 3


# ---- slabs over the cap --------------------------------------------------------------------------


def test_a_lower_cap_has_slabs_taken_back_at_once_and_nobody_else_gets_them(open_rig) -> None:
    rig = open_rig(tend_every_ms=1e9)  # the keeper comes when it is rung only
    borrow(rig, 6)
    serving, _, unowned, _ = rig.counts()
    cap(rig, 2)
    wait_for(lambda: rig.counts()[1] == 2)
    assert rig.counts() == (serving, 2, unowned + 4, 0)
    wait_for(lambda: rig.device.lender.collector.history)
    (revocation,) = rig.device.lender.collector.history
    assert (revocation.cause, revocation.slabs_returned) == (Cause.CAPPED, 4)
    reading = rig.device.reading()
    assert reading.revocations == 0  # serving's need began none
    assert reading.revoked == {"pressure": 0, "expired": 0, "capped": 1, "closing": 0}


def test_slabs_on_their_way_over_a_cap_are_not_demanded_twice(open_rig) -> None:
    rig = open_rig(revoke_ms=60_000.0)
    rig.stop_keeper()
    step = ParkedStep(rig, rig.borrow(6 * BLOCKS))
    cap(rig, 2)
    for _ in range(3):
        rig.device._tend()
    assert [revocation.slabs for revocation in rig.revocations] == [4]
    step.may_go_on.set()
    wait_for(lambda: step.outcome == "aborted")
    wait_for(lambda: rig.counts()[1] == 2)


def test_serving_that_needs_more_has_what_comes_home_over_the_cap(open_rig) -> None:
    rig = open_rig()
    rig.stop_keeper()
    borrow(rig, 10)
    cap(rig, 4)
    rig.device._tend()
    assert rig.serving.ensure((SLABS - 4) * 4)
    assert len(rig.revocations) == 1  # nothing more had to be asked for
    assert rig.serving.ensure(SLABS * 4)
    assert rig.counts() == (SLABS, 0, 0, 0)


# ---- its end -------------------------------------------------------------------------------------


def test_a_cap_that_nobody_renews_ends_and_nothing_is_lent_until_the_next(open_rig) -> None:
    clock = ManualClock()
    rig = open_rig(clock=clock, regrow_after_ms=0.0)
    rig.stop_keeper()
    cap(rig, 6, ttl_ms=1000.0)
    borrow(rig, 6)
    clock.advance(999 * NS_PER_MS)
    rig.device._tend()
    assert rig.counts()[1] == 6
    clock.advance(NS_PER_MS)
    assert refused(rig) is Reason.OVER_LIMIT  # before the keeper has come
    rig.device._tend()
    assert rig.counts()[1] == 0
    clock.advance(10**9 * NS_PER_MS)
    assert refused(rig) is Reason.OVER_LIMIT
    rooms = []
    rig.rollout.on_room = lambda: rooms.append(None)
    cap(rig, 6, ttl_ms=1000.0)
    assert len(rooms) == 1  # after its end there was none, so as much as before is more
    borrow(rig, 6)


# ---- what can go wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size_bytes", "ttl_ms"), [(-1, 1.0), (SLAB, -1.0), (SLAB, math.nan), (SLAB, -math.inf)]
)
def test_a_cap_that_means_nothing_is_refused_and_changes_nothing(
    open_rig, size_bytes: int, ttl_ms: float
) -> None:
    rig = open_rig()
    with pytest.raises(InvalidArgument, match="must be at least 0"):
        rig.device.lend_at_most(size_bytes, ttl_ms=ttl_ms)
    assert rig.device.reading().cap_bytes == SLABS * SLAB


def test_a_device_without_serving_has_nothing_to_cap_or_to_read() -> None:
    with CoServing.open("cpu", pool_bytes=SLABS * SLAB, slab_bytes=SLAB) as device:
        with pytest.raises(InvalidArgument, match="add the serving engine"):
            device.lend_at_most(SLAB, ttl_ms=1.0)
        with pytest.raises(InvalidArgument, match="add the serving engine"):
            device.reading()


def test_a_borrower_that_fails_when_it_hears_of_room_loses_everything(open_rig) -> None:
    rig = open_rig()

    def broken() -> None:
        raise RuntimeError("planted")

    rig.rollout.on_room = broken
    cap(rig, 2)
    cap(rig, 4)
    assert rig.device.gave_back == "RuntimeError: planted"
    assert refused(rig) is Reason.CLOSED
    with pytest.raises(Unavailable, match="planted"):
        rig.device.reading()
    cap(rig, 6)  # nothing is lent any more, so it is kept to
    assert refused(rig) is Reason.CLOSED


def test_a_closed_device_is_not_read_and_takes_any_cap(open_rig) -> None:
    rig = open_rig()
    rig.device.close()
    cap(rig, 3, ttl_ms=10.0)
    with pytest.raises(InvalidArgument, match="closed"):
        rig.device.reading()


# ---- a reading -----------------------------------------------------------------------------------


def at_most(counts, ms: float) -> int:
    """How many were at most so long, as far as buckets tell; math.inf for all."""
    ends = [count for upper_ns, count in counts if upper_ns >= ms * NS_PER_MS]
    return ends[0] if ends else counts[-1][1]


def test_a_reading_says_how_serving_is_and_what_is_lent(open_rig) -> None:
    clock = ManualClock()
    rig = open_rig(clock=clock, tpot_ms=50)
    rig.stop_keeper()
    borrow(rig, 3)
    cap(rig, 7, ttl_ms=1e6)
    blocks = rig.serving.alloc(5)
    rig.serving.arrived("a", prompt_tokens=8)
    rig.serving.arrived("b", prompt_tokens=8)
    rig.serving.arrived("c", prompt_tokens=8, prefilled=True)
    clock.advance(40 * NS_PER_MS)
    rig.serving.emitted_all(("a", "c"))
    clock.advance(10 * NS_PER_MS)
    rig.serving.emitted("a")
    said = rig.device.reading()
    assert (said.pool_bytes, said.reserve_bytes, said.slab_bytes) == (SLABS * SLAB, 2 * SLAB, SLAB)
    assert (said.slo.ttft_ms, said.slo.tpot_ms) == (20_000, 50)
    assert said.used_share == 5 / (SLABS * 4)
    assert (said.running, said.waiting) == (2, 1)
    assert (said.lent_bytes, said.cap_bytes) == (3 * SLAB, 7 * SLAB)
    # The first of `a` took 40 ms; 40 ms of `c`, whose prompt came prefilled, and 10 ms of `a`.
    assert [at_most(said.first_tokens, ms) for ms in (38, 42, math.inf)] == [0, 1, 1]
    assert [at_most(said.later_tokens, ms) for ms in (9, 11, 38, 42, math.inf)] == [0, 1, 1, 2, 2]
    rig.serving.kv.allocator.free(blocks)
    for name in "abc":
        rig.serving.finished(name)


def test_targets_below_the_bounds_are_named_with_the_smallest_feasible_ones(open_rig) -> None:
    said = replace(
        open_rig().device.reading(),
        slo=SLO(ttft_ms=100.0, tpot_ms=50.0, slowdown=0.1),
        evidence=(
            ShapeEvidence("step", scores=200, wanted=200, missing=0, bound_ms=60.0),
            ShapeEvidence("chunk", scores=200, wanted=200, missing=0, bound_ms=90.0),
        ),
        delay_ms=6.0,
    )
    assert said.targets_too_low() == {"tpot_ms": 96.0}
    assert replace(said, delay_ms=12.0).targets_too_low() == {"ttft_ms": 102.0, "tpot_ms": 102.0}
    # Without a slowdown no rollout runs beside a request, so the time between tokens is free.
    assert replace(said, slo=SLO(ttft_ms=100.0, tpot_ms=50.0)).targets_too_low() == {}
    unknown = ShapeEvidence("step", scores=3, wanted=200, missing=197, bound_ms=None)
    assert replace(said, evidence=(unknown, said.evidence[1])).targets_too_low() == {}


def test_a_reading_counts_what_serving_took_back_and_leaves_out_what_is_leaving(open_rig) -> None:
    rig = open_rig()
    step = ParkedStep(rig, rig.borrow(12 * BLOCKS))
    rig.device.lender.supply.recheck(taking=20)
    said = rig.device.reading()
    assert said.revocations == 1
    assert said.lent_bytes == (12 - rig.revocations[0].slabs) * SLAB
    assert said.ebbs == ((12 * SLAB, said.lent_bytes),)
    assert said.fallen_share(0) == rig.revocations[0].slabs / 12
    assert said.fallen_share(1) is None  # there is none behind it
    assert replace(said, revocations=2).fallen_share(0) is None  # one has left the list
    step.may_go_on.set()
    wait_for(lambda: step.outcome == "aborted")
