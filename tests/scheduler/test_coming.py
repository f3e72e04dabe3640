"""A turn waits for a worker that has yet to commit the newest version, if that pays."""

from rose.scheduler.events import (
    Start,
    VersionCommitted,
    VersionPublished,
)
from tests.scheduler.rig import Rig

TURNS = 6


def committed(worker: int, version: int) -> VersionCommitted:
    return VersionCommitted(worker, version)


def pair() -> Rig:
    """Return two like workers; the second committed version 1 a tenth of a second after the first.

    Nobody may run on older weights than the newest.
    """
    rig = Rig(worker_lag_max=0, max_staleness=8, batch_trajectories=64, stall_ms=1e9)
    for worker in (1, 2):
        rig.join(worker, step_ms=10.0)
    rig.step(VersionPublished(1), committed(1, 1))
    rig.step(committed(2, 1), after_ms=100.0)
    return rig


def starts(actions: list) -> list[int]:
    return [action.worker for action in actions if isinstance(action, Start)]


def publish_and_ask(rig: Rig) -> list[int]:
    """Publish version 2, which the first worker commits at once; return where turns start."""
    rig.step(VersionPublished(2), committed(1, 2))
    return [
        worker
        for number in range(TURNS)
        for worker in starts(rig.ready(number, context=20, max_new=400))
    ]


def test_turns_wait_for_the_worker_that_will_be_better_and_start_when_it_has_committed() -> None:
    rig = pair()
    at_once = publish_and_ask(rig)
    assert set(at_once) == {1}
    assert len(at_once) < TURNS
    later = starts(rig.step(committed(2, 2), after_ms=60.0))
    assert sorted(at_once + later) == [1] * (TURNS // 2) + [2] * (TURNS // 2)


def test_no_turn_waits_for_a_late_worker() -> None:
    rig = pair()
    at_once = publish_and_ask(rig)
    later = starts(rig.step(after_ms=101.0))
    assert set(later) == {1}
    assert len(at_once + later) == TURNS
