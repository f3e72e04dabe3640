"""How many trajectories are under way when memory is short."""

import pytest

from rose.scheduler import PlacementPolicy
from rose.scheduler.events import (
    Admit,
    GrantChanged,
    Start,
    TrajectoryCreated,
    TrajectoryEnded,
)
from rose.scheduler.worker import TurnEnd
from tests.scheduler.rig import Rig, ended, progress

LEASE = 1000
CONTEXT = 180  # at the end of a first turn; 20 tokens more at the end of the second
SHARE = 0.1


def rig_of(policy: PlacementPolicy = PlacementPolicy.JOINT, share: float = SHARE) -> Rig:
    rig = Rig(policy, displaced_share=share, batch_trajectories=1000)
    rig.join(0, kv_tokens=LEASE)
    rig.join(1, kv_tokens=LEASE)
    return rig


def live_through(rig: Rig, number: int, *, is_displaced: bool) -> None:
    """Run two turns of a trajectory; its home lacks the room for the second if it is displaced."""
    start = rig.run(number, context=CONTEXT - 20, max_new=20)
    rig.step(progress(start, 0, 20), ended(start, TurnEnd.FINISHED, 20))
    if is_displaced:
        rig.step(GrantChanged(start.worker, 1, CONTEXT, 0.0))
    again = rig.run(number, turn=1, context=CONTEXT, max_new=20)
    assert (again.worker != start.worker) == is_displaced
    rig.step(progress(again, 0, 20), ended(again, TurnEnd.FINISHED, 20), TrajectoryEnded(number))
    rig.step(GrantChanged(start.worker, 1, LEASE, 0.0))


def admitted(rig: Rig) -> int:
    """Return how many of more trajectories than fit are admitted at once."""
    actions = rig.step(*(TrajectoryCreated(1000 + number, 0) for number in range(90)))
    return sum(isinstance(action, Admit) for action in actions)


def test_four_times_what_memory_holds_are_admitted_at_first() -> None:
    rig = rig_of()
    for number in range(40):
        live_through(rig, number, is_displaced=False)
    assert admitted(rig) == pytest.approx(4 * 2 * LEASE / (CONTEXT + 20), rel=0.1)


def test_fewer_are_admitted_when_many_lost_their_caches() -> None:
    rig = rig_of()
    for number in range(200):
        live_through(rig, number, is_displaced=True)
    assert admitted(rig) == pytest.approx(0.5 * 2 * LEASE / (CONTEXT + 20), abs=1)


def test_a_cache_that_was_left_for_a_seat_does_not_count_as_lost_when_the_seat_is_revoked() -> None:
    rig = Rig(displaced_share=SHARE, batch_trajectories=1000, move_contexts=0.0, hold_min_ms=0.0)
    rig.join(0, kv_tokens=LEASE, seats=1)
    rig.join(1, kv_tokens=0)
    for number in range(0, 200, 2):
        start = rig.run(number, context=CONTEXT - 20, max_new=20)
        rig.step(progress(start, 0, 20), ended(start, TurnEnd.FINISHED, 20))
        other = rig.run(number + 1, context=1, max_new=20)
        rig.step(GrantChanged(1, 1 + number, LEASE, 0.0))
        moved = rig.run(number, turn=1, context=CONTEXT, max_new=20)
        assert (other.worker, moved.worker) == (0, 1)
        rig.step(progress(other, 0, 20), ended(other, TurnEnd.FINISHED, 20))
        rig.step(TrajectoryEnded(number + 1), GrantChanged(1, 1 + number, 0, 0.0))
        (again,) = rig.step(ended(moved, TurnEnd.INTERRUPTED, 0))
        assert isinstance(again, Start)
        rig.step(
            progress(again, 0, 20), ended(again, TurnEnd.FINISHED, 20), TrajectoryEnded(number)
        )
    assert admitted(rig) > 4 * LEASE / CONTEXT


def test_all_others_wait_until_one_is_over() -> None:
    rig = rig_of()
    for number in range(200):
        live_through(rig, number, is_displaced=True)
    rig.step(GrantChanged(0, 1, 0, 0.0), GrantChanged(1, 1, 0, 0.0))
    assert admitted(rig) == 1  # one may always run
    assert rig.step(TrajectoryEnded(1000)) == [Admit(1001)]


@pytest.mark.parametrize(
    ("policy", "share"), [(PlacementPolicy.LEAST_LOADED_STICKY, SHARE), (PlacementPolicy.JOINT, 1)]
)
def test_baselines_and_whoever_wants_it_admit_all(policy: PlacementPolicy, share: float) -> None:
    rig = rig_of(policy, share)
    for number in range(100):
        live_through(rig, number, is_displaced=True)
    assert admitted(rig) == 90


def test_those_that_never_come_back_hold_nobody_back_for_ever() -> None:
    rig = rig_of()
    for number in range(200):
        live_through(rig, number, is_displaced=True)
    few = admitted(rig)  # none of them ever wants a turn
    for more in range(5):
        assert rig.step(after_ms=1000.0) == [Admit(1000 + few + more)]
