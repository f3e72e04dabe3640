"""The core learns from turns how fast a worker is, whatever its figures say."""

import pytest

from rose.errors import InvalidArgument
from rose.scheduler.events import WorkerLost
from rose.scheduler.worker import TurnEnd
from tests.scheduler.rig import Rig, ended, said
from tests.scheduler.tuned import tuned

TOKENS = 100
FORESEEN_MS = 20.0 + TOKENS * (10.0 + 1.0)  # a prompt of 20 tokens, then a step for each


def turn_on(rig: Rig, number: int, *, took_ms: float, tokens: int = TOKENS) -> int:
    """Return where a trajectory of one turn ran, which takes so long and says so much."""
    start = rig.run(number, context=20, max_new=TOKENS)
    rig.step(after_ms=took_ms)
    rig.step(*([said(start, 0, tokens)] if tokens else []))
    rig.step(ended(start, TurnEnd.FINISHED, tokens))
    return start.worker


def pair(**settings: float) -> Rig:
    """Return two workers; by their figures the first is a little faster."""
    rig = Rig(stall_ms=1e9, **settings)
    rig.join(1, step_ms=10.0)
    rig.join(2, step_ms=11.0)
    return rig


def test_worker_whose_turns_take_longer_than_its_figures_say_is_left() -> None:
    rig = pair(pace_rate=0.5)
    assert turn_on(rig, 1, took_ms=3 * FORESEEN_MS) == 1
    assert turn_on(rig, 2, took_ms=FORESEEN_MS) == 2


def test_what_all_workers_are_wrong_by_moves_no_turn() -> None:
    rig = pair(pace_rate=0.5)
    rig.step(WorkerLost(2, ""))  # so that the first alone teaches what is usual
    for number in range(40):
        turn_on(rig, number, took_ms=3 * FORESEEN_MS)
    rig.join(3, step_ms=11.0)
    assert turn_on(rig, 40, took_ms=3 * FORESEEN_MS) == 1


def test_worker_that_keeps_to_its_figures_stays_what_it_is() -> None:
    rig = pair(pace_rate=0.1)
    assert [turn_on(rig, number, took_ms=FORESEEN_MS) for number in range(20)] == [1] * 20


def test_figures_are_believed_if_so_set() -> None:
    rig = pair(pace_rate=0.0)
    assert [turn_on(rig, number, took_ms=10 * FORESEEN_MS) for number in range(5)] == [1] * 5


def test_turn_that_says_nothing_teaches_nothing() -> None:
    rig = pair(pace_rate=0.5)
    assert turn_on(rig, 1, took_ms=10 * FORESEEN_MS, tokens=0) == 1
    assert turn_on(rig, 2, took_ms=FORESEEN_MS) == 1


def test_one_turn_that_hung_is_forgotten_after_few_that_did_not() -> None:
    rig = Rig(stall_ms=1e9, pace_rate=0.5)
    rig.join(1, step_ms=10.0)
    turn_on(rig, 1, took_ms=1e6 * FORESEEN_MS)
    for number in range(2, 9):
        turn_on(rig, number, took_ms=FORESEEN_MS)
    rig.join(2, step_ms=12.0)
    assert turn_on(rig, 10, took_ms=FORESEEN_MS) == 1


def test_worker_that_joins_again_begins_with_its_figures() -> None:
    rig = pair(pace_rate=0.5)
    turn_on(rig, 1, took_ms=10 * FORESEEN_MS)
    rig.step(WorkerLost(1, ""))
    rig.join(1, step_ms=10.0, epoch=2)
    assert turn_on(rig, 2, took_ms=FORESEEN_MS) == 1


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_rate_is_a_share(rate: float) -> None:
    with pytest.raises(InvalidArgument, match="pace_rate"):
        tuned(pace_rate=rate)
