"""Whatever fails inside rose: serving never hears of it, and has its memory back."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest

from rose.errors import InternalError, InvalidArgument, Unavailable
from rose.executor import Reason, Refusal, StepBatch
from rose.executor.revocation import Notice, Revocation
from rose.executor.safety import Safety
from tests.executor.conftest import ParkedStep, Rig
from tests.waiting import LONG_S, wait_for

ALL_BLOCKS = 64


class Failing:
    """Stands before a part of the core; the method `name` fails, the first `times` times."""

    def __init__(self, part: Any, name: str, *, times: int = 1) -> None:
        self._part = part
        self._name = name
        self._left = times

    def __getattr__(self, name: str) -> Any:
        if name == self._name and self._left > 0:
            self._left -= 1
            raise RuntimeError(f"planted in {name}")
        return getattr(self._part, name)


def fail(owner: Any, part: str, name: str, *, times: int = 1) -> None:
    setattr(owner, part, Failing(getattr(owner, part), name, times=times))


def whole_life(rig: Rig) -> None:
    """Call every method of the serving lane."""
    serving = rig.serving
    serving.arrived("x", prompt_tokens=8)
    with serving.step() as step:
        step.commit(StepBatch(1, 8, 8))
        ticket = serving.reserve(16)
        blocks = serving.alloc(1)
    serving.emitted("x")
    if not isinstance(ticket, Refusal):
        ticket.cancel()
    serving.kv.allocator.free(blocks or [])
    serving.ensure(ALL_BLOCKS)
    serving.finished("x")
    serving.settle()


# No integer, or none that a count of tokens or blocks can have.
IMPOSSIBLE: list[Any] = [-1, -5, 10**9 + 1, 1 << 40, 1 << 63, 1 << 70, 1.5, math.nan, "8", None]


@pytest.mark.parametrize("call", ["arrived", "ensure", "alloc", "reserve", *range(3)])
def test_an_impossible_count_is_refused_and_lending_goes_on(open_rig, call: str | int) -> None:
    rig = open_rig()
    rig.borrow(80)
    serving = rig.serving
    for value in IMPOSSIBLE:
        before = serving.bad_calls
        match call:
            case "arrived":
                serving.arrived("x", prompt_tokens=value)
                assert not rig.device.gate.is_open()  # The request is there, however long it is.
                serving.finished("x")
            case "ensure":
                assert serving.ensure(value) is False
            case "alloc":
                assert serving.alloc(value) is None
            case "reserve":
                assert isinstance(serving.reserve(value), Refusal)
            case int(feature):
                features = [1, 8, 8]
                features[feature] = value
                with serving.step(StepBatch(*features)):
                    pass
                with serving.step() as step:
                    step.commit(StepBatch(*features))
        assert (rig.device.gave_back, serving.bad_calls > before) == (None, True), value
    whole_life(rig)
    assert rig.device.gave_back is None


# Where the failure is planted: (owner, part, method of the core).
PLACES = [
    ("serving", "_state", "arrived"),
    ("serving", "_state", "finished"),
    ("serving", "_steps", "begin"),
    ("serving", "_steps", "commit"),
    ("serving", "_steps", "emitted"),
    ("serving", "_steps", "end"),
    ("serving", "_supply", "reclaim"),
    ("serving", "_supply", "offer_surplus"),
    ("supply", "_arbiter", "snapshot"),
    ("supply", "_arbiter", "take"),
    ("lender", "arbiter", "revoke"),
    ("supply", "_arbiter", "give_back"),
    ("collector", "_log", "append_revoke_begun"),
    ("supply", "_watch", "is_short"),
    ("supply", "_arbiter", "is_short"),
    ("supply", "_demand", "blocks"),
    ("serving", "_demand", "arrived"),
    ("serving", "_supply", "foresee"),
    ("serving", "_supply", "load_changed"),
    ("lender", "state", "beat"),
    ("collector", "_arbiter", "expire"),
]


def owners_of(rig: Rig) -> dict[str, Any]:
    lender = rig.device.lender
    supply, collector = lender.supply, lender.collector
    return {"serving": rig.serving, "lender": lender, "supply": supply, "collector": collector}


def plant(rig: Rig, place: tuple[str, str, str], *, times: int) -> None:
    owner, part, name = place
    owners = owners_of(rig)
    if (owner, name) == ("lender", "revoke"):
        # The revocation is made with the lender's arbiter; nothing else of it may be a stand-in.
        tenancy = rig.device.lender.newest
        stock, planted = tenancy.revoke, Failing(rig.device.arbiter, name, times=times)

        def revoke(revocation: Revocation) -> None:
            revocation.arbiter = planted
            stock(revocation)

        tenancy.revoke = revoke
        return
    fail(owners[owner], part, name, times=times)


@pytest.mark.parametrize("place", PLACES, ids="-".join)
def test_gave_back_on_a_failure_inside_rose(open_rig, place) -> None:
    rig = open_rig(park_wait_ms=200.0, revoke_ms=300.0)
    rig.held = rig.borrow(80)
    plant(rig, place, times=1)
    whole_life(rig)
    wait_for(lambda: rig.device.gave_back)
    assert rig.device.gave_back == f"RuntimeError: planted in {place[2]}"
    wait_for(lambda: getattr(rig.rollout.try_step(), "reason", None) is Reason.CLOSED)
    rig.evacuate()  # as an engine's loop does, when the one call that told it of slabs failed
    assert rig.counts()[1] == 0
    assert rig.counts()[3] == 0
    answer = rig.rollout.reserve(8)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.CLOSED
    # And serving goes on as if rose were not there.
    whole_life(rig)
    assert rig.serving.ensure(ALL_BLOCKS)
    assert rig.counts() == (16, 0, 0, 0)


@pytest.mark.parametrize("place", PLACES, ids="-".join)
def test_nothing_raises_in_serving_when_a_part_stays_broken(open_rig, place) -> None:
    rig = open_rig(revoke_ms=20.0, park_wait_ms=20.0)
    rig.held = rig.borrow(8)
    plant(rig, place, times=1_000_000)
    for _ in range(2):
        whole_life(rig)
    wait_for(lambda: rig.device.gave_back)
    wait_for(lambda: getattr(rig.rollout.try_step(), "reason", None) is Reason.CLOSED)
    # The audit at the end reads the books through the real parts.
    owner, part, _ = place
    owners = owners_of(rig)
    if isinstance(getattr(owners[owner], part), Failing):
        setattr(owners[owner], part, getattr(owners[owner], part)._part)


def test_borrower_that_raises_while_it_is_revoked_loses_its_slabs_all_the_same(open_rig) -> None:
    rig = open_rig()

    def broken(_notice: Notice) -> None:
        raise RuntimeError("the engine is broken")

    rig.rollout.on_revoke = broken
    rig.borrow(60)
    assert rig.serving.ensure(ALL_BLOCKS)
    assert rig.device.gave_back == "RuntimeError: the engine is broken"
    assert rig.counts() == (16, 0, 0, 0)


def test_giving_back_aborts_a_parked_step(open_rig) -> None:
    rig = open_rig()
    step = ParkedStep(rig, rig.borrow(60))
    rig.serving.arrived("a", prompt_tokens=8)
    step.park()
    fail(rig.serving, "_steps", "end")
    with rig.serving.step(StepBatch(1, 8, 0)):
        pass
    assert rig.device.gave_back == "RuntimeError: planted in end"
    assert step.outcome == "aborted"
    assert rig.counts()[1] == 0
    assert rig.counts()[3] == 0
    rig.serving.finished("a")


def test_no_segment_starts_once_all_is_given_back(open_rig) -> None:
    rig = open_rig()

    def segments() -> None:
        while True:
            rig.rollout.gate()

    def roll_out() -> None:
        with contextlib.suppress(Unavailable):
            rig.step_once(segments)

    thread = rig.start(roll_out)
    wait_for(rig.device.gate.is_open)
    rig.device.safety.report(RuntimeError("enough"))
    passed = rig.device.gate.passed
    thread.join(LONG_S)
    assert not thread.is_alive()  # it was told, at its gate or when it asked for a step
    assert rig.device.gate.passed == passed
    assert not rig.device.gate.is_open()


def test_failure_in_the_rollout_lane_gives_back_and_is_raised_there_only(open_rig) -> None:
    rig = open_rig()
    assert rig.rollout.ensure(60)
    fail(rig.device.lender, "arbiter", "grant")
    with pytest.raises(RuntimeError, match="planted in grant"):
        rig.rollout.ensure(100)
    assert rig.device.gave_back == "RuntimeError: planted in grant"
    assert rig.counts()[1] == 0
    whole_life(rig)


def test_mistake_of_the_borrower_is_raised_and_stops_nothing(open_rig) -> None:
    rig = open_rig()
    with pytest.raises(InvalidArgument, match=r"stale|out of range"):
        rig.rollout.pin([17])
    with pytest.raises(InvalidArgument, match="pin 99"):
        rig.rollout.unpin(99)
    assert rig.device.gave_back is None
    assert rig.rollout.ensure(8)


def test_only_the_first_failure_is_reported(open_rig) -> None:
    rig = open_rig()
    for name in ("first", "second"):
        rig.device.safety.report(InternalError(name))
    assert rig.device.gave_back == "InternalError: first"


def test_an_interrupt_is_not_ours_to_swallow() -> None:
    causes: list[BaseException] = []
    safety = Safety(causes.append)
    body: Callable[[], None] = lambda: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
    with pytest.raises(KeyboardInterrupt), safety:
        body()
    assert causes == []
