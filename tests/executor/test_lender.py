"""Slabs between serving and the borrower: certified when they go, in time when they come back."""

import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import Grant, ManualClock
from rose.executor import Reason, Refusal, StepBatch
from rose.executor.lender import Lender
from rose.executor.revocation import Notice, Revocation
from rose.slo.verify import verify_log
from tests.executor.conftest import SLABS, ParkedStep, Rig
from tests.waiting import LONG_S, wait_for


def slack_blocks(rig: Rig) -> int:
    return rig.device.lender.supply.slack_blocks(rig.device.arbiter.snapshot())


# ---- grants --------------------------------------------------------------------------------------


def before_the_grant(monkeypatch, meanwhile) -> None:
    """Let something happen between a request for slabs and its grant."""
    stock = Lender.retry_after_ms

    def retry_after_ms(lender: Lender) -> float:
        meanwhile()
        return stock(lender)

    monkeypatch.setattr(Lender, "retry_after_ms", retry_after_ms)


@pytest.mark.parametrize(
    ("meanwhile", "slabs", "blocks"),
    [
        (lambda rig: rig.device.arbiter.take(0, 9), 9, 0),
        (lambda rig: rig.serving.kv.allocator.alloc(3), 0, 3),
        (lambda rig: rig.serving.arrived("a", prompt_tokens=8), 0, 1),
    ],
    ids=["slabs changed hands", "serving took blocks", "a request arrived"],
)
def test_grant_rests_on_what_is_true_when_the_slabs_go(
    open_rig, monkeypatch, meanwhile, slabs: int, blocks: int
) -> None:
    rig = open_rig()
    rig.stop_keeper()
    slack = slack_blocks(rig)
    unowned = rig.device.arbiter.snapshot().unowned
    # The largest grant would leave nothing over.
    rig.serving.kv.allocator.alloc(slack % 4)
    before_the_grant(monkeypatch, lambda: meanwhile(rig))
    assert isinstance(rig.device.lender.grow(10_000), Grant)
    assert rig.counts()[1] == min((slack - slack % 4 - blocks) // 4, unowned - slabs)
    assert slack_blocks(rig) >= 0
    rig.device.close()
    assert verify_log(rig.log_path).violations == []


def test_admitters_that_race_leave_serving_what_it_could_need(open_rig) -> None:
    rig = open_rig(regrow_after_ms=0)
    rig.stop_keeper()  # so nothing is taken back
    start = threading.Barrier(5)
    leases: list[Grant] = []

    def admit() -> None:
        start.wait(LONG_S)
        for _ in range(30):
            answer = rig.device.lender.grow(8)
            if isinstance(answer, Grant):
                leases.append(answer)

    threads = [rig.start(admit) for _ in range(4)]
    start.wait(LONG_S)
    taken = [rig.serving.kv.allocator.alloc(1) for _ in range(4)]
    for thread in threads:
        thread.join(LONG_S)
    # One after the other, as if there were but one: all that may be lent is, and no more. What
    # serving took in the meantime may have left it short by just that.
    slack = slack_blocks(rig)
    assert -len(taken) <= slack < 4
    assert len({lease.lease_id for lease in leases}) == len(leases) == rig.counts()[1] > 0


def test_no_grant_slips_in_behind_the_close(open_rig, monkeypatch) -> None:
    rig = open_rig()
    before_the_grant(monkeypatch, rig.device.lender.close)
    answer = rig.device.lender.grow(8)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.CLOSED
    assert rig.counts()[1] == 0


def test_limit_holds_against_the_borrower(open_rig) -> None:
    # Raised by the ceiling, not by a certificate: the pool has room.
    rig = open_rig(limit_slabs=1)
    answer = rig.device.lender.grow(16)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.OVER_LIMIT


def test_reserve_that_nobody_named_is_what_the_priors_say_serving_could_need(open_rig) -> None:
    rig = open_rig(reserve_slabs=None)
    demand = rig.device.lender.supply.demand_blocks
    assert rig.counts()[0] == -(-demand // 4) > 2
    rig.rollout.ensure(10_000)
    assert rig.serving.ensure(demand)
    assert rig.revocations == []


@given(
    steps=st.lists(
        st.tuples(st.floats(0.05, 2000.0), st.integers(0, 8), st.integers(0, 32)), max_size=150
    ),
    arrivals=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 64)), max_size=120),
    running=st.integers(0, 3),
    wanted=st.integers(1, 200),
)
def test_whatever_was_measured_all_that_serving_could_need_is_there_after_a_grant(
    steps, arrivals, running, wanted
) -> None:
    with TemporaryDirectory() as folder:
        clock = ManualClock()
        rig = Rig(Path(folder) / "log", reserve_slabs=0, revoke_ms=20.0, clock=clock)
        rig.stop_keeper()
        demand = rig.device.lender.demand
        for actual_ms, decoding, prefilled in steps:
            forecast = rig.serving._model.observe(
                actual_ms, decode_sequences=decoding, context_tokens=0, prefill_tokens=prefilled
            )
            demand.step_ended(
                predicted_ms=forecast.predicted_ms,
                actual_ms=actual_ms,
                decode_sequences=decoding,
                prefill_tokens=prefilled,
            )
        for gap_ms, prompt_tokens in arrivals:
            clock.advance(gap_ms * 1_000_000)
            demand.arrived(prompt_tokens=prompt_tokens)
        for name in range(running):
            rig.serving.arrived(str(name), prompt_tokens=8)
        if isinstance(rig.device.lender.grow(wanted), Grant):
            needed = rig.device.lender.supply.demand_blocks
            assert rig.serving.ensure(needed)
            assert rig.serving.kv.allocator.alloc(needed)
            assert rig.revocations == []
        for name in range(running):
            rig.serving.finished(str(name))
        rig.close()


# ---- the certificate is checked again ------------------------------------------------------------


def test_supply_is_rechecked_and_slabs_are_taken_back_before_it_falls_under_demand(
    open_rig,
) -> None:
    rig = open_rig(revoke_ms=100.0)
    rig.held = rig.borrow(80)
    rig.rollout.ensure(10_000)
    allocator = rig.serving.kv.allocator
    rig.serving.arrived("a", prompt_tokens=64)
    taken: list[int] = []
    for _ in range(20):
        with rig.serving.step(StepBatch(1, 64, 0)):
            assert rig.serving.ensure(1)
            taken += allocator.alloc(1)
            threading.Event().wait(0.005)  # as long as the prior says: demand is rate times T
        assert slack_blocks(rig) >= 0
        # The next demand of the certificate's size is there, and nobody has to be asked.
        asked = len(rig.revocations)
        assert rig.serving.ensure(rig.device.lender.supply.demand_blocks)
        assert len(rig.revocations) == asked
    assert rig.revocations != []
    allocator.free(taken)
    rig.serving.finished("a")


def slack_when_asked(rig: Rig) -> list[int]:
    """Keep what serving has beyond what it could need, as it was when slabs were asked for."""
    seen: list[int] = []
    tenancy = rig.device.lender.newest
    stock = tenancy.revoke

    def revoke(revocation: Revocation) -> None:
        seen.append(slack_blocks(rig))
        stock(revocation)

    tenancy.revoke = revoke
    return seen


def test_every_allocation_of_the_lane_asks_for_slabs_before_it_leaves_too_little(open_rig) -> None:
    rig = open_rig(regrow_after_ms=0)
    rig.stop_keeper()
    rig.rollout.ensure(10_000)
    seen = slack_when_asked(rig)
    lent = rig.counts()[1]
    for _ in range(40):  # between two steps: nobody but the allocation looks
        assert rig.serving.alloc(1)
        assert slack_blocks(rig) >= 0
    assert len(seen) > 3
    assert min(seen) >= 0
    assert rig.counts()[1] < lent


def test_reserving_serving_blocks_asks_for_slabs_first(open_rig) -> None:
    rig = open_rig()
    rig.stop_keeper()
    rig.rollout.ensure(10_000)
    seen = slack_when_asked(rig)
    ticket = rig.serving.reserve(64)
    assert len(seen) == 1
    assert seen[0] >= 0
    assert slack_blocks(rig) >= 0
    ticket.cancel()


@pytest.mark.parametrize("way", ["alloc", "reserve"])
def test_allocation_behind_the_back_of_the_lane_rings_the_keeper(open_rig, way: str) -> None:
    rig = open_rig(tend_every_ms=1e6)
    rig.rollout.ensure(10_000)
    allocator = rig.serving.kv.allocator
    slack = slack_blocks(rig)
    allocator.alloc(slack)
    assert not threading.Event().wait(0.02)
    assert rig.revocations == []  # as much as it could need is left
    {
        "alloc": lambda: allocator.alloc(1),
        "reserve": lambda: allocator.reserve(1),
    }[way]()
    wait_for(lambda: slack_blocks(rig) >= 0)
    assert rig.revocations != []


def test_arrivals_that_leave_serving_short_ring_the_keeper(open_rig) -> None:
    rig = open_rig(tend_every_ms=1e6)
    rig.rollout.ensure(10_000)
    for name in range(6):
        rig.serving.arrived(str(name), prompt_tokens=8)
    wait_for(lambda: slack_blocks(rig) >= 0)
    assert rig.revocations != []
    for name in range(6):
        rig.serving.finished(str(name))


def test_slabs_on_the_way_back_are_not_demanded_twice(open_rig) -> None:
    rig = open_rig()
    rig.stop_keeper()
    rig.rollout.ensure(10_000)
    rig.held = rig.rollout.kv.allocator.alloc(rig.rollout.kv.allocator.free_blocks)
    pin = rig.rollout.pin(rig.held)  # no slab can leave before the step ends
    rig.serving.arrived("a", prompt_tokens=64)
    taken = rig.serving.kv.allocator.alloc(4)
    for _ in range(3):
        rig.device.lender.supply.recheck()
    assert len(rig.revocations) == 1
    assert len(rig.rollout.leaving()) > 0
    rig.rollout.unpin(pin)
    rig.serving.kv.allocator.free(taken)
    rig.serving.finished("a")


# ---- slabs in use --------------------------------------------------------------------------------


def test_parked_step_is_aborted_and_its_slabs_come_back(open_rig) -> None:
    rig = open_rig()
    step = ParkedStep(rig, rig.borrow(90))
    rig.serving.arrived("a", prompt_tokens=8)  # the gate is closed and stays so
    step.park()
    assert rig.serving.ensure(64)
    assert step.outcome == "aborted"
    assert not rig.device.gate.is_open()
    assert rig.counts() == (16, 0, 0, 0)
    (revocation,) = rig.device.lender.collector.history
    assert revocation.aborted_steps == 1
    assert revocation.slabs_fenced == 0
    assert 0 < revocation.latency_ms < 2000
    rig.serving.finished("a")


def test_step_that_pins_nothing_that_is_wanted_is_not_aborted(open_rig) -> None:
    rig = open_rig()
    blocks = rig.borrow(90)
    step = ParkedStep(rig, blocks[:1])
    rig.serving.arrived("a", prompt_tokens=8)
    step.park()
    rig.held = blocks[1:]
    assert rig.serving.ensure(20)
    rig.serving.finished("a")
    wait_for(lambda: step.outcome)
    assert step.outcome == "passed"
    assert rig.device.gate.stats().aborts == 0


def test_late_borrower_is_fenced_and_its_slabs_quarantined(open_rig) -> None:
    rig = open_rig(revoke_ms=30.0)
    blocks = rig.borrow(60)
    step = ParkedStep(rig, blocks)
    lent = rig.counts()[1]
    unpinned = lent - len(set(rig.rollout.kv.allocator.slabs_of(blocks)))
    assert not rig.serving.ensure(64)  # bounded: the step is stuck in a segment and gives nothing
    quarantined = lent - unpinned
    assert rig.counts() == (16 - quarantined, 0, 0, quarantined)
    assert [one.slabs_fenced for one in rig.device.lender.collector.history] == [quarantined]
    assert rig.rollout.leaving()
    # Certificates never count it.
    assert rig.device.arbiter.snapshot().unowned == 0
    assert not rig.serving.ensure(64)
    step.may_go_on.set()
    wait_for(lambda: step.outcome)
    # The step is over, which proves that nothing of it writes there any more.
    wait_for(lambda: rig.counts()[3] == 0)
    assert rig.serving.ensure(64)
    assert rig.counts() == (16, 0, 0, 0)


def test_slabs_that_no_step_pins_leave_although_the_engine_frees_nothing(open_rig) -> None:
    rig = open_rig()
    rig.rollout.on_revoke = lambda _notice: None
    rig.held = rig.borrow(60)
    assert rig.serving.ensure(64)
    assert rig.counts() == (16, 0, 0, 0)
    rig.evacuate()  # Too late, and without effect on the present owner.
    assert rig.held == []
    assert rig.device.gave_back is None


def test_the_thread_that_revokes_notifies_the_engine(open_rig) -> None:
    rig = open_rig()
    rig.held = rig.borrow(60)
    notified: list[tuple[int, int]] = []

    def on_revoke(notice: Notice) -> None:
        notified.append((threading.get_ident(), notice.slabs))
        assert notice.remaining_s() > 0
        assert len(rig.rollout.leaving()) == notice.slabs
        rig.evacuate()

    rig.rollout.on_revoke = on_revoke
    rig.device.lender.take_back(3)
    assert notified == [(threading.get_ident(), 3)]


def test_late_borrower_gets_no_step_until_its_slabs_are_empty(open_rig) -> None:
    rig = open_rig(revoke_ms=30.0)
    rig.held = rig.borrow(60)
    pin = rig.rollout.pin(rig.held)
    assert not rig.serving.ensure(64)
    assert rig.counts()[3] > 0
    answer = rig.rollout.try_step(timeout_ms=100)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.LATE
    rig.rollout.unpin(pin)
    rig.evacuate()
    wait_for(lambda: rig.counts()[3] == 0)
    rig.step_once(lambda: None)
    assert rig.device.gave_back is None


# ---- leases --------------------------------------------------------------------------------------


def test_lease_of_an_idle_borrower_lasts(open_rig) -> None:
    rig = open_rig(lease_ttl_ms=60.0, tend_every_ms=5.0)
    rig.held = rig.borrow(30)
    lent = rig.counts()[1]
    threading.Event().wait(0.3)
    assert rig.counts()[1] == lent
    assert rig.rollout.leaving() == frozenset()
    rig.rollout.kv.allocator.free(rig.held)


def test_growth_waits_after_a_revocation(open_rig) -> None:
    rig = open_rig(regrow_after_ms=150.0)
    rig.rollout.ensure(60)
    assert rig.serving.ensure(64)
    rig.serving.settle()
    answer = rig.rollout.reserve(8)
    assert isinstance(answer, Refusal)
    assert 0 < answer.retry_after_ms <= 150
    wait_for(lambda: rig.rollout.ensure(8))


def test_surplus_goes_back_and_the_borrower_is_told(open_rig) -> None:
    rig = open_rig(regrow_after_ms=0)
    told = []
    rig.rollout.on_room = lambda: told.append(rig.counts())
    assert rig.serving.ensure(64)
    taken = rig.serving.kv.allocator.alloc(8)
    assert not rig.rollout.ensure(8)
    rig.serving.settle()
    # Only what a next request could not need: the certificate still holds.
    assert slack_blocks(rig) >= 0
    ((serving, _, unowned, _),) = told
    assert serving >= 2  # the reserve, and what is in use
    assert unowned > 0
    assert rig.rollout.ensure(8)
    rig.serving.kv.allocator.free(taken)
    rig.serving.settle()


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_an_idle_serving_keeps_slabs_for_a_remembered_burst_or_because_it_asked_for_them(
    open_rig, is_asked_for: bool
) -> None:
    clock = ManualClock()
    rig = open_rig(clock=clock, regrow_after_ms=0.0, arrival_memory_ms=1000.0)
    rig.stop_keeper()
    rooms = []
    rig.rollout.on_room = lambda: rooms.append(rig.counts())
    for name in range(6):
        rig.serving.arrived(str(name), prompt_tokens=8)
    assert rig.serving.ensure(SLABS * 4)
    for name in range(6):
        rig.serving.finished(str(name))
    rig.serving.settle()
    kept = rig.counts()[0]
    rooms.clear()
    if is_asked_for:
        assert rig.serving.ensure(kept * 4)  # outside a step, by an engine about to use them
    clock.advance(1_001_000_000)
    rig.serving.arrived("a", prompt_tokens=8)
    rig.device._tend()
    assert rig.counts()[0] == kept  # a request is live, and may need them
    rig.serving.finished("a")
    rig.device._tend()
    if is_asked_for:
        assert rig.counts()[0] == kept
        rig.serving.settle()
    assert 2 <= rig.counts()[0] < kept  # its reserve, and what one more request could need
    assert len(rooms) == 1


# ---- a borrower that is late ---------------------------------------------------------------------


def test_a_borrower_that_never_unpins_is_taken_out_and_serving_has_its_memory(open_rig) -> None:
    rig = open_rig(revoke_ms=20.0, lease_ttl_ms=300.0)
    rig.held = rig.borrow(80)
    pin = rig.rollout.pin(rig.held)
    assert not rig.serving.ensure(SLABS * 4)
    assert rig.device.gave_back is None
    wait_for(lambda: rig.serving.ensure(SLABS * 4))
    assert rig.counts() == (SLABS, 0, 0, 0)
    said = rig.device.gave_back
    assert said.startswith("DeadlineExceeded: the borrower has kept 10 slabs 300 ms past their")
    assert rig.rollout.try_step().reason is Reason.CLOSED
    rig.rollout.unpin(pin)  # Too late, and without effect on the present owner.
    rig.rollout.kv.allocator.free(rig.held)
    assert rig.counts() == (SLABS, 0, 0, 0)


def test_a_borrower_that_is_late_for_less_than_a_ttl_is_not_taken_out(open_rig) -> None:
    rig = open_rig(revoke_ms=20.0, lease_ttl_ms=1000.0, regrow_after_ms=0.0)
    for _ in range(4):  # Together it is late for longer than a TTL.
        rig.held = rig.borrow(80)
        pin = rig.rollout.pin(rig.held)
        assert not rig.serving.ensure(SLABS * 4)
        threading.Event().wait(0.3)
        rig.rollout.unpin(pin)
        rig.evacuate()
        wait_for(lambda: rig.serving.ensure(SLABS * 4))
        rig.serving.settle()
    assert rig.device.gave_back is None


def test_slabs_of_a_step_that_never_ends_stay_out_of_use(open_rig) -> None:
    rig = open_rig(revoke_ms=20.0, lease_ttl_ms=300.0, park_wait_ms=20.0)
    step = ParkedStep(rig, rig.borrow(80))
    assert not rig.serving.ensure(SLABS * 4)
    wait_for(lambda: rig.device.gave_back)
    assert not rig.serving.ensure(SLABS * 4)
    late = rig.counts()[3]
    assert late > 0  # It may still write there.
    step.may_go_on.set()
    wait_for(lambda: step.outcome in {"aborted", "closed"})
    wait_for(lambda: rig.serving.ensure(SLABS * 4))
