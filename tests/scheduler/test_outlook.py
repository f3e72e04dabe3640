"""What the core makes of what it has seen: order, reservations, urgency, freshness and fates."""

from typing import Any

import pytest

from rose.scheduler import PlacementPolicy
from rose.scheduler.events import (
    Consumed,
    GrantChanged,
    Start,
    Stop,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnReady,
    VersionCommitted,
    VersionPublished,
)
from rose.scheduler.stats import TrajectoryFate
from rose.scheduler.worker import TurnEnd
from tests.scheduler.rig import BORROWED, DEDICATED, Rig, ended, progress

LONG, SHORT = 1, 2  # groups
TEACHER = 1000  # numbers from here on are those of trajectories that only teach


def live_through(rig: Rig, number: int, tokens: int, *, group: int, after_ms: float = 0.0) -> None:
    """Let a trajectory of one turn begin, say so much, and end."""
    rig.step(TrajectoryCreated(number, group))
    (start,) = rig.step(TurnReady(number, 0, 10, tokens + 1))
    assert isinstance(start, Start)
    rig.step(after_ms=after_ms)
    rig.step(progress(start, 0, tokens), ended(start, TurnEnd.FINISHED, tokens))
    rig.step(TrajectoryEnded(number))


def taught(policy: PlacementPolicy = PlacementPolicy.JOINT, **settings: Any) -> Rig:
    """Return a rig with one teaching worker, in which LONG says 2000 tokens and SHORT 10.

    A member of each is live, so that neither group is forgotten.
    """
    rig = Rig(policy, **settings)
    rig.join(TEACHER, kv_tokens=50_000)
    for group in (LONG, SHORT):
        rig.step(TrajectoryCreated(TEACHER + group, group))
    for member in range(10, 20):
        live_through(rig, TEACHER + member, 10, group=SHORT, after_ms=100.0)
        live_through(rig, TEACHER + member + 10, 2000, group=LONG, after_ms=20_000.0)
    rig.step(GrantChanged(TEACHER, 1, 0, 0.0))
    return rig


def queue(rig: Rig, number: int, group: int, *, context: int = 10, max_new: int = 3000) -> None:
    rig.step(TrajectoryCreated(number, group))
    assert rig.step(TurnReady(number, 0, context, max_new)) == []


def starts(actions: list[Any]) -> list[int]:
    return [action.trajectory for action in actions if isinstance(action, Start)]


# ---- the queue


def test_short_one_that_waited_for_as_long_as_the_long_one_takes_goes_first() -> None:
    rig = taught(wait_max_ms=1e8)
    queue(rig, 1, SHORT)
    rig.step(after_ms=100_000.0)  # twice 20 seconds and what may be between
    queue(rig, 2, LONG)
    assert starts(rig.join(0, kv_tokens=50_000)) == [1, 2]


# ---- reservations


def reserved(rig: Rig, worker: int) -> int:
    return rig.core.stats().used_kv_tokens[worker]


def test_turn_reserves_what_most_of_its_group_say() -> None:
    rig = taught(reserve_ahead_tokens=4)
    queue(rig, 1, SHORT)
    queue(rig, 2, LONG)
    rig.join(0, seats=1, kv_tokens=50_000)
    assert 2010 <= reserved(rig, 0) <= 2010 + 2000 / 8
    rig.join(7, seats=1, kv_tokens=50_000)
    assert 10 + 10 <= reserved(rig, 7) <= 10 + 60


def test_reservation_stays_ahead_of_what_was_said() -> None:
    rig = taught(reserve_ahead_tokens=50)
    queue(rig, 1, SHORT)
    (start,) = rig.join(0)
    for place in range(300):
        rig.step(progress(start, place, 1))
        assert 10 + place + 1 + 50 <= reserved(rig, 0) <= 10 + place + 1 + 100
    rig.step(progress(start, 300, 2700))
    assert reserved(rig, 0) == 3010  # all that it may say


def crowd(rig: Rig, *, kv_tokens: int) -> list[Start]:
    """Start three short turns on a worker with no room for one to become longer."""
    for number, context in ((1, 10), (2, 10), (3, 20)):
        queue(rig, number, SHORT, context=context, max_new=100)
    return [one for one in rig.join(0, kv_tokens=kv_tokens) if isinstance(one, Start)]


def test_turn_that_outgrows_its_reservation_moves_the_cheapest_other() -> None:
    rig = taught(reserve_ahead_tokens=30)
    first, second, _ = crowd(rig, kv_tokens=140)
    assert reserved(rig, 0) == 40 + 40 + 50
    _, stop = rig.step(progress(first, 0, 8))
    assert stop == Stop(second.trajectory, 0, 1)  # its prompt is the shortest
    stats = rig.core.stats()
    assert stats.outgrown == stats.recalls == 1
    assert reserved(rig, 0) == 78 + 40 + 50  # until it has left
    rig.step(ended(second, TurnEnd.INTERRUPTED, 0))
    assert reserved(rig, 0) == 78 + 50


def test_turn_that_is_alone_never_outgrows_its_worker() -> None:
    rig = taught(reserve_ahead_tokens=8)
    queue(rig, 1, SHORT, max_new=90)
    (start,) = rig.join(0, kv_tokens=100)
    for place in range(90):
        rig.step(progress(start, place, 1))
        assert reserved(rig, 0) <= 100
    assert rig.core.stats().recalls == 0


# ---- freshness


@pytest.fixture
def risky() -> Rig:
    """Trajectories that half of the time take less than the two versions there are, or more."""
    rig = Rig(max_staleness=1, batch_trajectories=1, worker_lag_max=100, wait_max_ms=1e8)
    rig.join(TEACHER, kv_tokens=50_000)
    for member in range(20):
        tokens = 4000 if member % 5 == 0 else 500
        live_through(rig, TEACHER + member, tokens, group=0, after_ms=10.0 * tokens)
        rig.step(Consumed(1))
    rig.step(GrantChanged(TEACHER, 1, 0, 0.0), VersionPublished(1))
    rig.step(VersionPublished(2), after_ms=10_000.0)
    rig.step(TrajectoryCreated(1, 0), TrajectoryCreated(2, 0), TrajectoryCreated(3, 0))
    return rig


def places_of_both(rig: Rig) -> list[int]:
    """Return the workers that two turns start on: 0 is borrowed and fast, 7 dedicated and slow."""
    actions = rig.step(*(TurnReady(number, 0, 10, 5000) for number in (1, 2)))
    return [action.worker for action in actions if isinstance(action, Start)]


def join_both(rig: Rig, *, version: int = 2, kv_tokens: int = 50_000) -> None:
    rig.join(0, BORROWED, kv_tokens=50_000, version=version, step_ms=1.0)
    rig.join(7, DEDICATED, kv_tokens=kv_tokens, version=version)


def test_trajectory_that_may_be_too_late_runs_on_dedicated_workers_first(risky: Rig) -> None:
    join_both(risky)
    assert places_of_both(risky) == [7, 7]


def test_trajectory_that_may_be_too_late_does_not_wait_for_a_dedicated_worker(risky: Rig) -> None:
    join_both(risky, kv_tokens=1)
    assert places_of_both(risky) == [0, 0]


def test_trajectory_that_is_safe_runs_anywhere(risky: Rig) -> None:
    risky.step(VersionPublished(3), after_ms=10_000_000.0)  # versions take long
    join_both(risky, version=3)
    assert places_of_both(risky) == [0, 0]


def test_trajectory_that_the_next_batch_needs_is_safe(risky: Rig) -> None:
    risky.step(TrajectoryEnded(2), TrajectoryEnded(3))  # given up
    risky.step(Consumed(1))
    join_both(risky)
    (start,) = risky.step(TurnReady(1, 0, 10, 5000))
    assert isinstance(start, Start)
    assert start.worker == 0


# ---- weights that will be too old


def second_in_line(**settings: Any) -> Rig:
    """Return a rig at version 1: a batch is being learned, and the next has begun."""
    rig = Rig(max_staleness=1, batch_trajectories=1, wait_max_ms=5000.0, **settings)
    rig.join(TEACHER)
    live_through(rig, 1, 10, group=0)
    rig.step(GrantChanged(TEACHER, 1, 0, 0.0), VersionPublished(1))
    rig.step(TrajectoryCreated(2, 0))
    return rig


def test_turn_waits_for_weights_that_will_not_be_too_old_when_they_are_used() -> None:
    rig = second_in_line()
    rig.join(0, version=0)  # one behind: it would be two by then
    assert not rig.step(TurnReady(2, 0, 10, 20))
    assert starts(rig.step(VersionCommitted(0, 1))) == [2]


def test_turns_of_the_next_batch_may_run_one_version_behind() -> None:
    rig = second_in_line()
    rig.step(Consumed(1))
    rig.join(0, version=0)
    assert starts(rig.step(TurnReady(2, 0, 10, 20))) == [2]


def test_turn_that_has_waited_for_too_long_takes_what_there_is() -> None:
    rig = second_in_line()
    rig.join(0, version=0)
    assert not rig.step(TurnReady(2, 0, 10, 20))
    assert starts(rig.step(after_ms=6000.0)) == [2]


# ---- fates


def test_trajectories_consumed_too_late_are_stale_and_counted_by_length() -> None:
    rig = Rig(max_staleness=1, batch_trajectories=10)
    rig.join(0)
    for number, tokens in ((0, 3), (1, 100)):
        live_through(rig, number, tokens, group=0)
    rig.step(Consumed(1))
    rig.step(VersionPublished(2), VersionCommitted(0, 2), Consumed(1))
    stats = rig.core.stats()
    assert stats.stale == 1
    assert stats.length_bias == pytest.approx(100 / 3)
    done = stats.lengths_by_fate[TrajectoryFate.DONE]
    stale = stats.lengths_by_fate[TrajectoryFate.STALE]
    assert (done[2], done[7], sum(done)) == (1, 1, 2)
    assert (stale[7], sum(stale)) == (1, 1)


def test_given_up_trajectories_are_dropped_with_their_tokens() -> None:
    rig = Rig()
    rig.join(0)
    live_through(rig, 0, 10, group=0)
    start = rig.run(1)
    rig.step(progress(start, 0, 5))
    rig.step(TrajectoryEnded(1))
    stats = rig.core.stats()
    assert sum(stats.lengths_by_fate[TrajectoryFate.DROPPED]) == 1
    assert stats.length_bias == pytest.approx(0.5)
