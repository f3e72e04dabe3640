"""The core learns from turns how fast a worker is, whatever its figures say."""

from rose.scheduler.events import WorkerLost
from rose.scheduler.worker import TurnEnd
from tests.scheduler.rig import Rig, ended, progress

TOKENS = 100
FORESEEN_MS = 20.0 + TOKENS * (10.0 + 1.0)  # a prompt of 20 tokens, then a step for each


def turn_on(rig: Rig, number: int, *, took_ms: float, tokens: int = TOKENS) -> int:
    """Return where a trajectory of one turn ran, which takes so long and says so much."""
    start = rig.run(number, context=20, max_new=TOKENS)
    rig.step(after_ms=took_ms)
    rig.step(*([progress(start, 0, tokens)] if tokens else []))
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


def test_worker_that_joins_again_begins_with_its_figures() -> None:
    rig = pair(pace_rate=0.5)
    turn_on(rig, 1, took_ms=10 * FORESEEN_MS)
    rig.step(WorkerLost(1))
    rig.join(1, step_ms=10.0, epoch=2)
    assert turn_on(rig, 2, took_ms=FORESEEN_MS) == 1
