"""Leases: granted, resized, run out, revoked, and what becomes of the turns under them."""

from rose.scheduler.events import (
    Deliver,
    GrantChanged,
    Start,
    VersionPublished,
    WorkerLost,
)
from rose.scheduler.worker import TurnEnd
from tests.scheduler.rig import BORROWED, Rig, ended, progress, stop_of


def revoked(worker: int, epoch: int = 1) -> GrantChanged:
    return GrantChanged(worker, epoch, 0, 0.0)


def test_revoked_turn_resumes_elsewhere_at_the_token() -> None:
    rig = Rig()
    rig.join(0, BORROWED)
    start = rig.run(1)
    assert rig.step(progress(start, 0, 5)) == [Deliver(1, 0, event=0, skip=0, tokens=5)]
    rig.join(7)
    assert rig.step(revoked(0)) == [stop_of(start)]
    # What the worker still had to say, under the lease that is dead by now.
    snapshot = [progress(start, 3, 6), ended(start, TurnEnd.INTERRUPTED, tokens=9)]
    assert rig.step(*snapshot, after_ms=99) == [
        Deliver(1, 0, event=0, skip=2, tokens=4),
        Start(1, 0, 7, 1, first_token=9, max_new_tokens=11),
    ]
    assert rig.core.stats().resumed == 1


def test_turn_without_a_snapshot_resumes_after_its_grace_period() -> None:
    rig = Rig()
    rig.join(0, BORROWED)
    start = rig.run(1)
    rig.step(progress(start, 0, 5))
    rig.join(7)
    rig.step(revoked(0))
    assert rig.core.stats().recalled == 1
    assert rig.step(after_ms=99) == []
    assert rig.step(after_ms=1) == [Start(1, 0, 7, 1, first_token=5, max_new_tokens=15)]


def test_lease_that_runs_out_is_dead_and_stays_dead() -> None:
    rig = Rig()
    rig.join(0, BORROWED, ttl_ms=50.0)
    start = rig.run(1)
    rig.step(GrantChanged(0, 1, 10_000, 50.0), after_ms=49)  # renewed
    assert rig.step(after_ms=49) == []
    assert rig.step(after_ms=1) == [stop_of(start)]
    assert rig.step(GrantChanged(0, 1, 10_000, 50.0)) == []
    assert rig.step(after_ms=200) == []  # queued, and nobody may run it
    assert rig.core.stats().queued == 1
    (again,) = rig.step(GrantChanged(0, 2, 10_000, 50.0))
    assert again == Start(1, 0, 0, 2, 0, 20)


def test_whoever_renews_is_alive_however_late_the_step() -> None:
    rig = Rig()
    rig.join(0, BORROWED, ttl_ms=50.0)
    rig.run(1)
    assert rig.step(GrantChanged(0, 1, 10_000, 50.0), after_ms=500) == []
    assert rig.core.stats().running == 1


def test_higher_epoch_is_a_new_grant_and_a_lower_one_says_nothing() -> None:
    rig = Rig()
    rig.join(0, BORROWED, epoch=4)
    start = rig.run(1)
    assert rig.step(GrantChanged(0, 3, 5, 0.0), revoked(0, 2)) == []
    assert rig.core.stats().stale_events == 2
    assert rig.step(GrantChanged(0, 5, 10_000, 0.0)) == [stop_of(start)]
    (again,) = rig.step(ended(start, TurnEnd.INTERRUPTED, 0))
    assert again.grant_epoch == 5


def test_shrunk_lease_keeps_the_urgent_turns() -> None:
    rig = Rig()
    rig.join(0)
    starts = []
    for trajectory in range(4):  # 30 tokens each; the first is the oldest
        starts.append(rig.run(trajectory))
        rig.step(after_ms=1000)
    actions = rig.step(GrantChanged(0, 1, 65, 0.0))
    assert actions == [stop_of(starts[3]), stop_of(starts[2])]
    assert rig.core.stats().running == 2


def test_turn_that_is_going_stale_is_urgent() -> None:
    rig = Rig(max_staleness=1)
    rig.join(0, version=3)
    rig.step(VersionPublished(3))
    fresh = rig.run(1, context=50)
    old = rig.run(2)  # cheaper to redo
    rig.step(progress(fresh, 0, 1, version=3), progress(old, 0, 1, version=2))
    assert rig.step(GrantChanged(0, 1, 70, 0.0)) == [stop_of(fresh)]


def test_among_equally_urgent_turns_the_cheapest_to_redo_is_stopped() -> None:
    rig = Rig()
    rig.join(0)
    starts = [rig.run(trajectory, context=context) for trajectory, context in enumerate((30, 5))]
    assert rig.step(GrantChanged(0, 1, 60, 0.0)) == [stop_of(starts[1])]


def test_recalled_turn_holds_its_room_until_the_worker_lets_go() -> None:
    rig = Rig()
    rig.join(0, seats=2, kv_tokens=60)
    old = rig.run(1)
    rig.step(after_ms=10)
    young = rig.run(2)
    assert rig.step(GrantChanged(0, 1, 59, 0.0)) == [stop_of(young)]
    assert rig.core.stats().used_kv_tokens == {0: 60}
    assert rig.ready(3, context=1, max_new=20) == []  # it would fit beside `old`
    (start,) = rig.step(ended(young, TurnEnd.INTERRUPTED, 0))
    assert start.trajectory == 3
    assert rig.core.stats().used_kv_tokens == {0: 30 + 21}
    assert old.worker == 0


def test_worker_that_joins_again_cannot_use_an_old_epoch() -> None:
    rig = Rig()
    rig.join(0, epoch=3)
    rig.step(WorkerLost(0))
    rig.join(0, epoch=3)
    assert rig.ready(1) == []
    (start,) = rig.step(GrantChanged(0, 4, 100, 0.0))
    assert start.grant_epoch == 4
