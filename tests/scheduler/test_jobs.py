"""Several RL jobs: each with its own trainer, and perhaps one device under the workers of many."""

import pytest

from rose.errors import InvalidArgument
from rose.scheduler.events import (
    Admit,
    Consumed,
    Event,
    GrantChanged,
    JobJoined,
    Start,
    TrajectoryCreated,
    TrajectoryEnded,
    VersionPublished,
    WorkerJoined,
    WorkerLost,
)
from rose.scheduler.stats import JobStats
from rose.scheduler.worker import TurnEnd
from tests.scheduler.rig import BORROWED, DEDICATED, Rig, ended, progress, stop_of


def test_each_job_admits_by_its_own_batch_and_staleness() -> None:
    rig = Rig(batch_trajectories=1, max_staleness=0)
    rig.step(JobJoined(7, batch_trajectories=2, max_staleness=1, weight=1.0))
    created = [TrajectoryCreated(number, 0, job=7 if number % 2 else 0) for number in range(12)]
    admitted = [action.trajectory for action in rig.step(*created)]
    assert sorted(admitted) == [0, 1, 3, 5, 7]


def test_consumption_of_one_job_admits_nobody_of_another() -> None:
    rig = Rig(batch_trajectories=1, max_staleness=0)
    rig.step(*(TrajectoryCreated(number, 0, job=number % 2) for number in range(4)))
    rig.step(TrajectoryEnded(0), TrajectoryEnded(1))
    assert rig.step(Consumed(1, job=1)) == [Admit(3)]
    assert rig.core.stats().jobs == {
        0: JobStats(0, admitted=1, done=1, dropped=0, consumed=0, stale=0, length_bias=1.0),
        1: JobStats(0, admitted=2, done=1, dropped=0, consumed=1, stale=0, length_bias=1.0),
    }


def test_large_turn_of_one_job_does_not_hide_the_room_of_another() -> None:
    rig = Rig()
    rig.join(0, job=0, kv_tokens=50)
    rig.join(1, job=1, kv_tokens=500)
    assert rig.ready(0, context=100, job=0) == []
    (start,) = rig.ready(1, context=200, job=1)
    assert isinstance(start, Start)
    assert start.worker == 1


def test_version_of_one_job_does_not_make_the_workers_of_another_stale() -> None:
    rig = Rig(worker_lag_max=0)
    rig.join(0, job=0)
    rig.join(1, job=1)
    rig.step(VersionPublished(3, job=1))
    assert len(rig.ready(0, job=0)) == 1
    assert rig.ready(1, job=1) == []


def test_old_trajectories_of_another_job_make_nobody_young() -> None:
    # Urgency is by the mean age of the job: the shrunk lease keeps the old one of its own job.
    rig = Rig()
    rig.join(0, job=0, kv_tokens=60)
    rig.step(TrajectoryCreated(9, 0, job=1))
    rig.step(after_ms=10_000)
    old = rig.run(1, context=10)
    rig.step(after_ms=1000)
    young = rig.run(2, context=5)
    assert rig.step(GrantChanged(0, 1, 40, 0.0)) == [stop_of(young)]
    assert old.worker == 0


@pytest.mark.parametrize(
    "event",
    [
        JobJoined(-1, 1, 0, 1.0),
        JobJoined(1, 0, 0, 1.0),
        JobJoined(1, 1, -1, 1.0),
        JobJoined(1, 1, 0, 0.0),
        JobJoined(1, 1, 0, float("nan")),
        JobJoined(1, 1, 0, 1e9),
        TrajectoryCreated(1, 0, job=-1),
        VersionPublished(1, job=-1),
        Consumed(1, job=3),
        Consumed(0, job=-5),
        WorkerJoined(0, DEDICATED, 0, 1, 1000.0, 10.0, 1.0, 0, job=-1),
        WorkerJoined(0, DEDICATED, 0, 1, 1000.0, 10.0, 1.0, 0, device=-2),
    ],
)
def test_job_without_a_meaning_is_refused(event: Event) -> None:
    rig = Rig()
    with pytest.raises(InvalidArgument):
        rig.step(event)
    assert rig.core.stats().jobs == {}


# ---- one device under several workers


def test_least_that_a_worker_says_of_its_device_holds_for_all_on_it() -> None:
    rig = Rig()
    for number in range(2):
        rig.join(number, BORROWED, kv_tokens=100, job=number, device=5)
    first = rig.run(0, context=20, job=0)  # 40 tokens
    rig.step(progress(first, 0, 1))
    second = rig.run(1, context=10, job=1)  # 30
    assert rig.step(GrantChanged(0, 1, 60, 0.0)) == [stop_of(second)]
    rig.step(ended(second, TurnEnd.INTERRUPTED, 0))
    assert rig.core.stats().running == 1
    again = rig.step(GrantChanged(0, 1, 100, 0.0), after_ms=60)
    assert [start.worker for start in again] == [1]


def test_worker_that_leaves_a_device_takes_nothing_of_it_along() -> None:
    rig = Rig()
    for number in range(2):
        rig.join(number, BORROWED, kv_tokens=60, job=number, device=5)
    rig.run(0, context=40, job=0)
    rig.step(WorkerLost(0))
    assert rig.run(1, context=40, job=1).worker == 1
    rig.join(0, BORROWED, epoch=2, kv_tokens=60, job=0)  # again, on a device of its own
    assert rig.core.stats().used_kv_tokens == {0: 60, 1: 60}


# ---- admission


def test_trajectories_that_end_while_they_wait_leave_nothing_behind() -> None:
    rig = Rig(batch_trajectories=1, max_staleness=0)
    rig.step(TrajectoryCreated(0, 0), TrajectoryCreated(1, 0))
    size = len(rig.core.snapshot())
    for number in range(2, 200):
        rig.step(TrajectoryCreated(number, 0), TrajectoryEnded(number))
    assert rig.core.stats().waiting == 1
    assert len(rig.core.snapshot()) == size


def test_number_that_waits_again_waits_behind_those_that_came_meanwhile() -> None:
    rig = Rig(batch_trajectories=1, max_staleness=0)
    rig.step(*(TrajectoryCreated(number, 0) for number in range(3)))
    rig.step(TrajectoryEnded(1), TrajectoryCreated(1, 0))
    assert Admit(2) in rig.step(TrajectoryEnded(0), Consumed(1))
