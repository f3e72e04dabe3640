"""Turns spare the caches of others, but not for ever."""

from collections.abc import Sequence

from rose.scheduler.events import (
    Start,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnReady,
    VersionCommitted,
)
from rose.scheduler.worker import TurnEnd
from tests.scheduler.rig import Rig, ended, progress

KEPT = 600  # tokens of a cached context
LEASE = 1000


def starts(actions: Sequence[object]) -> list[tuple[int, int]]:
    """Return trajectory and worker of each start."""
    return [(one.trajectory, one.worker) for one in actions if isinstance(one, Start)]


def keep(rig: Rig, trajectory: int, tokens: int = KEPT) -> int:
    """Run the first turn of a trajectory; return the worker that caches `tokens` of it."""
    start = rig.run(trajectory, context=tokens - 20, max_new=20)
    rig.step(progress(start, 0, 20), ended(start, TurnEnd.FINISHED, 20))
    return start.worker


def rig_of(*, workers: int = 1, **settings: float) -> Rig:
    rig = Rig(**{"wait_max_ms": 5_000.0, "cache_wait_ms": 20_000.0, **settings})
    for number in range(workers):
        rig.join(number, kv_tokens=LEASE)
    return rig


def test_a_turn_waits_a_limited_time_before_it_evicts_a_cache() -> None:
    rig = rig_of()
    keep(rig, 1)
    assert not starts(rig.ready(2, context=390, max_new=20))
    assert starts(rig.ready(3, context=280, max_new=20)) == [(3, 0)]  # beside it
    assert not starts(rig.step(after_ms=19_999.0))
    assert starts(rig.step(after_ms=1.0)) == [(2, 0)]


def test_the_cache_of_an_ended_trajectory_is_free_room() -> None:
    rig = rig_of()
    keep(rig, 1)
    assert not starts(rig.ready(2, context=780, max_new=20))
    assert starts(rig.step(TrajectoryEnded(1))) == [(2, 0)]


def test_new_weights_end_all_caches() -> None:
    rig = rig_of()
    keep(rig, 1)
    assert not starts(rig.ready(2, context=780, max_new=20))
    assert starts(rig.step(VersionCommitted(0, 1))) == [(2, 0)]


def test_a_starved_turn_that_only_waits_for_caches_blocks_no_other() -> None:
    rig = rig_of()
    keep(rig, 1)
    rig.ready(2, context=780, max_new=20)
    rig.step(after_ms=5_000.0)  # it has starved
    assert starts(rig.ready(3, context=10, max_new=20)) == [(3, 0)]


def test_a_turn_that_moves_away_frees_room_at_its_home() -> None:
    rig = rig_of(move_contexts=0.0, reserve_quantile=0.1)
    keep(rig, 1, 400)
    rig.run(2, context=570, max_new=20)
    assert not starts(rig.ready(3, context=300, max_new=200))
    rig.join(1, kv_tokens=450)  # too small for turn 3, whose limit is 200 tokens
    rig.step(after_ms=1.0)  # so turn 3 comes before turn 1
    assert starts(rig.ready(1, turn=1, context=400, max_new=20)) == [(1, 1)]
    assert starts(rig.step()) == [(3, 0)]


def test_a_kept_worker_stays_kept_when_a_turn_moves_away_from_it() -> None:
    rig = rig_of(move_contexts=0.0, cache_wait_ms=0.0)
    keep(rig, 1, 300)
    rig.run(2, context=480, max_new=20)
    rig.join(1, kv_tokens=700)
    rig.run(3, context=340, max_new=20)
    rig.ready(4, context=780, max_new=20)
    rig.step(after_ms=5_000.0)  # it has starved, so the worker with the smallest shortage is kept
    rig.step(TrajectoryCreated(5, 0))
    assert starts(rig.step(TurnReady(1, 1, 300, 20), TurnReady(5, 0, 30, 20))) == [(1, 1)]


def test_a_turn_that_evicts_a_cache_as_it_grows_makes_room_for_another_turn() -> None:
    rig = rig_of(reserve_quantile=0.1, reserve_ahead_tokens=10)
    keep(rig, 1, 600)
    growing = rig.run(2, context=180, max_new=400)
    assert not starts(rig.ready(3, context=300, max_new=20))
    actions = rig.step(progress(growing, 0, 250))
    assert starts([*actions, *rig.step()]) == [(3, 0)]


def test_a_turn_that_had_to_leave_its_worker_may_evict_caches() -> None:
    rig = rig_of(retry_ms=500.0)
    keep(rig, 1, 700)
    rig.join(1, kv_tokens=LEASE)
    start = rig.run(2, context=480, max_new=20)
    assert start.worker == 1
    assert starts(rig.step(ended(start, TurnEnd.INTERRUPTED, 0))) == [(2, 0)]


def test_caches_on_a_shared_device_are_not_spared() -> None:
    rig = Rig()
    rig.join(0, kv_tokens=LEASE, device=7)
    rig.join(1, kv_tokens=LEASE, device=7, job=1)
    keep(rig, 1)
    assert starts(rig.ready(2, context=780, max_new=20, job=1)) == [(2, 1)]
