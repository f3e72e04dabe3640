"""The broker's decisions on real devices: pressure shrinks loans, calm lets them grow again."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rose._core import Grant, ManualClock
from rose.clock import BootClock
from rose.errors import InvalidArgument
from rose.executor import CoServing, Reason
from rose.units import NS_PER_MS
from rose_lab.broker import Decision, LoanChange
from rose_lab.broker.lending import BrokeredDevice, LendingLoop
from tests.executor.conftest import SLAB, SLABS, ParkedStep, Rig
from tests.waiting import wait_for

BLOCKS = 8  # of the borrower in a slab
ROUND_MS = 5_000
MOST = 11  # slabs: 0.8 of what the reserve of 2 leaves of 16
TPOT_MS = 50


class Time:
    """A clock of the core, as the loop wants it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def now_ns(self) -> int:
        return self.clock.now_ns()

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps by this clock")


class FastClock(BootClock):
    """A day within minutes."""

    def now_ns(self) -> int:
        return 1000 * super().now_ns()


class World:
    """A device whose borrower takes all it can get, and the loop, round by round."""

    def __init__(self, log: Path) -> None:
        self.clock = ManualClock()
        self.rig = Rig(log, clock=self.clock, tpot_ms=TPOT_MS, regrow_after_ms=0.0)
        self.rig.stop_keeper()
        self.loop = LendingLoop(
            [BrokeredDevice("d0", self.rig.device)],
            loan_bytes_min=SLAB,
            clock=Time(self.clock),
        )

    def round(self) -> Decision:
        """Let a period pass, decide, let the keeper come by, and the borrower grow and fill it."""
        self.clock.advance(ROUND_MS * NS_PER_MS)
        (decision,) = self.loop.poll()
        self.rig.device._tend()
        self.grow()
        return decision

    def rounds(self, count: int) -> list[Decision]:
        return [self.round() for _ in range(count)]

    def grow(self) -> None:
        rollout = self.rig.rollout
        while isinstance(self.rig.device.lender.grow(SLABS * BLOCKS), Grant):
            pass
        rollout.slabs()  # Admits the granted slabs.
        self.rig.held += rollout.kv.allocator.alloc(rollout.kv.allocator.free_blocks) or []

    def ebb(self, slabs: int, *, flows: bool = True) -> Decision:
        """The same period, but each second serving needs `slabs` slabs and lets go of them."""
        serving = self.rig.serving
        for _ in range(ROUND_MS // 1000):
            self.clock.advance(1000 * NS_PER_MS)
            assert serving.ensure(slabs * BLOCKS // 2)
            if flows:
                serving.settle()
                self.rig.device._tend()
                self.grow()
            else:
                slabs += 1
        serving.settle()
        (decision,) = self.loop.poll()
        self.rig.device._tend()
        self.grow()
        return decision

    @property
    def lent(self) -> int:
        return self.rig.counts()[1]

    def grown(self) -> None:
        """Let the loan reach the most that there is."""
        moves = [one.move for one in self.rounds(9)]
        assert moves[-1] is LoanChange.KEEP
        assert self.lent == MOST

    def slow_tokens(self, *, every_ms: int) -> None:
        """Serve one request whose tokens come as late as that."""
        self.rig.serving.arrived("slow", prompt_tokens=8)
        for _ in range(20):
            self.rig.serving.emitted("slow")
            self.clock.advance(every_ms * NS_PER_MS)
        self.rig.serving.finished("slow")


@pytest.fixture
def open_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def open_one() -> World:
        worlds.append(World(tmp_path / f"{len(worlds)}.log"))
        return worlds[-1]

    yield open_one
    for world in worlds:
        world.loop.close()
        world.rig.close()


def test_nothing_is_lent_before_calm_was_seen_and_then_more_and_more(open_world) -> None:
    world = open_world()
    sizes = []
    for _ in range(9):
        decision = world.round()
        sizes.append(decision.lend_bytes // SLAB)
        # The device has on loan what the broker decided, all of it.
        assert world.lent == sizes[-1]
    assert sizes == [0, 0, 2, 4, 6, 8, 10, MOST, MOST]


def test_serving_that_gets_late_has_all_back_and_lends_again_when_its_hold_is_over(
    open_world,
) -> None:
    world = open_world()
    world.grown()
    world.slow_tokens(every_ms=2 * TPOT_MS)
    ended = world.round()
    assert (ended.move, ended.lend_bytes) == (LoanChange.END, 0)
    assert "later tokens have a P99 of" in ended.why
    assert world.lent == 0
    assert world.rig.device.lender.grow(1).reason is Reason.OVER_LIMIT
    moves = [one.move for one in world.rounds(12)]
    # Three rounds until late tokens are out of the window, then a hold of 20 s.
    refused = moves.index(LoanChange.LEND)
    assert moves[:refused] == [LoanChange.REFUSE] * refused
    assert refused * ROUND_MS >= 20_000
    assert set(moves[refused + 1 :]) <= {LoanChange.GROW, LoanChange.KEEP}
    assert world.lent > 2


def test_the_broker_is_told_what_serving_took_back_and_what_is_left(open_world) -> None:
    world = open_world()
    world.grown()
    taken = world.rig.serving.ensure(9 * 4)  # and gives it back at once
    assert taken
    left = world.lent
    assert left < MOST
    world.rig.serving.settle()
    decision = world.round()
    assert (decision.move, decision.lend_bytes) == (LoanChange.SHRINK, left * SLAB)
    assert decision.why == "the device's executor revoked a loan"
    assert world.lent == left
    # What goes home over a cap is the broker's own doing, and no revocation.
    assert world.round().why.startswith("calm must last")


def test_ebb_and_flow_of_small_revocations_neither_shrinks_a_loan_nor_holds_it(open_world) -> None:
    """Serving takes a slab back every second and lets it go: no device flaps that way."""
    world = open_world()
    world.grown()
    decisions = [world.ebb(6) for _ in range(12)]
    assert world.rig.device.reading().revocations == 60
    assert {(one.move, one.retry_after_ms) for one in decisions} == {(LoanChange.KEEP, 0.0)}
    assert world.lent == MOST


def test_serving_that_takes_back_more_than_ebbs_at_once_or_bit_by_bit_is_a_revocation(
    open_world,
) -> None:
    at_once, bit_by_bit = open_world(), open_world()
    at_once.grown()
    decisions = [at_once.ebb(8) for _ in range(3)]  # 3 of 11 slabs, again and again
    assert {one.why for one in decisions} == {"the device's executor revoked a loan"}
    assert [one.retry_after_ms for one in decisions] == pytest.approx([20e3, 40e3, 80e3])
    bit_by_bit.grown()
    decision = bit_by_bit.ebb(6, flows=False)  # 1 of 11 each second, and none comes back
    assert (decision.move, decision.why) == (
        LoanChange.SHRINK,
        "the device's executor revoked a loan",
    )
    assert decision.retry_after_ms == pytest.approx(20e3)


def test_a_loop_that_stops_lends_nothing_for_longer_than_it_said(open_world) -> None:
    world = open_world()
    decision = world.rounds(5)[-1]
    world.loop.close()
    world.loop.close()
    world.clock.advance(int(decision.ttl_ms * NS_PER_MS) - 1)
    world.rig.device._tend()
    assert world.lent == decision.lend_bytes // SLAB > 0
    world.clock.advance(2)
    world.rig.device._tend()
    assert world.lent == 0
    assert world.rig.device.lender.grow(1).reason is Reason.OVER_LIMIT


def test_a_loop_that_starts_anew_takes_over_the_loan_it_finds(open_world) -> None:
    world = open_world()
    world.grown()
    world.loop = LendingLoop(
        [BrokeredDevice("d0", world.rig.device)],
        loan_bytes_min=SLAB,
        clock=Time(world.clock),
    )
    decision = world.round()
    assert (decision.move, decision.lend_bytes) == (LoanChange.KEEP, MOST * SLAB)
    assert world.lent == MOST


def test_a_device_that_gave_back_is_one_that_cannot_be_read(open_world) -> None:
    world = open_world()
    world.rounds(5)
    world.rig.device.safety.report(RuntimeError("planted"))
    assert world.lent == 0
    kept = world.round()
    assert kept.why == "not renewed: this device has stopped lending: RuntimeError: planted"
    assert world.rounds(13)[-1].move is LoanChange.REFUSE  # its loan has run out
    assert world.rig.serving.ensure(SLABS * 4)


# ---- its thread ----------------------------------------------------------------------------------


def started(
    devices: list[CoServing], on_decisions: Callable[[list[Decision]], None]
) -> LendingLoop:
    brokered = [BrokeredDevice(f"d{number}", device) for number, device in enumerate(devices)]
    loop = LendingLoop(
        brokered, loan_bytes_min=SLAB, on_decisions=on_decisions, clock=FastClock(), period_ms=1e3
    )
    loop.start()
    return loop


def test_the_thread_lends_round_after_round_until_it_is_closed(open_world) -> None:
    first, second = open_world(), open_world()
    seen: list[list[Decision]] = []
    with started([first.rig.device, second.rig.device], seen.append):
        # A loan begins once the device has been calm for a while.
        wait_for(lambda: len(seen) >= 3 and all(one.lend_bytes > 0 for one in seen[-1]))
    count, last = len(seen), seen[-1]
    assert [one.device for one in last] == ["d0", "d1"]
    for world, decision in zip((first, second), last, strict=True):
        assert decision.lend_bytes > 0
        assert world.rig.device.reading().cap_bytes == decision.lend_bytes  # closing lifts nothing
    assert len(seen) == count


def test_what_fails_in_the_loop_makes_its_devices_give_everything_back(open_world) -> None:
    first, second = open_world(), open_world()
    for world in (first, second):
        world.grow()
        assert world.lent > 0
    failed = threading.Event()

    def broken(decisions: list[Decision]) -> None:
        failed.set()
        raise RuntimeError("planted")

    loop = started([first.rig.device, second.rig.device], broken)
    assert failed.wait(60)
    for world in (first, second):
        wait_for(lambda world=world: world.rig.device.gave_back == "RuntimeError: planted")
        wait_for(lambda world=world: world.lent == 0)
        assert world.rig.serving.ensure(SLABS * 4)  # and serving has all there is
    wait_for(lambda: not loop._thread.is_alive())
    loop.close()


def test_invalid_settings_of_the_loop_are_refused(open_world) -> None:
    world = open_world()
    device = BrokeredDevice("d0", world.rig.device)
    with pytest.raises(InvalidArgument, match="different names"):
        LendingLoop([device, device])
    with pytest.raises(InvalidArgument, match="period_ms"):
        LendingLoop([device], period_ms=0.0)
    with (
        CoServing.open("cpu", pool_bytes=1 << 20) as empty,
        pytest.raises(InvalidArgument, match="add the serving engine"),
    ):
        LendingLoop([BrokeredDevice("d1", empty)])


def test_serving_is_not_held_up_by_a_loan_that_ends_in_the_middle_of_a_step(open_world) -> None:
    world = open_world()
    world.grown()
    world.rig.rollout.kv.allocator.free(world.rig.held)
    world.rig.held = []
    step = ParkedStep(world.rig, world.rig.rollout.kv.allocator.alloc(MOST * BLOCKS))
    world.slow_tokens(every_ms=2 * TPOT_MS)
    world.clock.advance(ROUND_MS * NS_PER_MS)
    (decision,) = world.loop.poll()  # the step pins all of it, and this returns
    assert decision.move is LoanChange.END
    world.rig.device._tend()
    assert world.lent == MOST
    assert world.rig.serving.alloc(4) is not None
    step.may_go_on.set()
    wait_for(lambda: step.outcome == "aborted")
    wait_for(lambda: world.lent == 0)
