"""Worlds whose times can be worked out by hand, and worlds that are refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rose.errors import InvalidArgument
from rose.scheduler.events import GrantChanged
from rose_lab.sim.cluster.simulate import SimOptions, simulate_cluster
from rose_lab.sim.cluster.world import ClusterWorld
from tests.lab.sim.record import record_cluster
from tests.lab.sim.worlds import (
    AT_ONCE,
    ROOM,
    job,
    lending,
    random_trajectories,
    trajectories,
    worker,
    world,
)

# A prompt of 100 tokens takes 100 ms, each of 50 steps 11 ms.
TURN = (100, 50, 0.0)
TURN_MS = 100 + 50 * 11


def one_turn(*workers: Any) -> ClusterWorld:
    return world(workers, [job(trajectories([[TURN]]))])


def test_a_turn_takes_its_prompt_and_its_steps() -> None:
    found = simulate_cluster(one_turn(worker(0)), AT_ONCE)
    assert found.ended_ms == pytest.approx(TURN_MS)
    assert found.busy_ms_by_worker == pytest.approx([TURN_MS])
    assert found.jobs[0].done_ms == pytest.approx([TURN_MS])
    assert found.jobs[0].rollout_ms == pytest.approx([TURN_MS])
    assert found.tokens_by_worker.tolist() == [50]
    assert found.decisions == 1


def test_half_a_device_takes_twice_as_long() -> None:
    found = simulate_cluster(one_turn(worker(0, lending([(0, 0.5, ROOM)]))), AT_ONCE)
    assert found.ended_ms == pytest.approx(2 * TURN_MS)
    assert found.busy_ms_by_worker == pytest.approx([TURN_MS])


def test_a_revoked_turn_resumes_on_another_worker_with_every_token() -> None:
    lent = lending([(0, 1.0, ROOM), (204, 1.0, 0)])
    # The slow one is only second choice.
    slow = replace(worker(1), times=replace(worker(1).times, decode_step_ms=99.0))
    found = simulate_cluster(one_turn(worker(0, lent), slow), AT_ONCE)
    # By 204 ms the prompt and nine tokens are there; elsewhere both are the prompt.
    assert found.tokens_by_worker.tolist() == [9, 41]
    assert found.ended_ms == pytest.approx(204 + 109 + 41 * 100)
    assert found.revocations == found.recalls == 1
    assert found.reprefill_tokens == 109
    assert found.recovery_ms == pytest.approx([0.0])
    assert found.tokens_lost == 0


def test_a_revoked_turn_waits_for_the_lease_to_come_back() -> None:
    lent = lending([(0, 1.0, ROOM), (204, 1.0, 0), (1000, 1.0, ROOM)])
    borrowed = replace(worker(0, lent), start_up_ms=70.0)
    found = simulate_cluster(one_turn(borrowed), AT_ONCE)
    assert found.recovery_ms == pytest.approx([1070 - 204])
    assert found.ended_ms == pytest.approx(1070 + 109 + 41 * 11)


def test_a_lease_that_ends_before_it_opens_is_never_told() -> None:
    lent = lending([(0, 1.0, 0), (100, 1.0, ROOM), (120, 1.0, 0), (1000, 1.0, ROOM)])
    found, steps = record_cluster(one_turn(replace(worker(0, lent), start_up_ms=70.0)), AT_ONCE)
    told = [one for step in steps for one in step.events if isinstance(one, GrantChanged)]
    assert [(one.grant_epoch, one.kv_tokens) for one in told] == [(1, ROOM)]
    assert found.ended_ms == pytest.approx(1070 + TURN_MS)


def test_a_lease_that_shrinks_takes_the_turn_that_came_last() -> None:
    lent = lending([(0, 1.0, 700), (1000, 1.0, 300)])
    turns = [[(150, 100, 0.0)], [(150, 100, 0.0)]]
    two = world([worker(0, lent)], [job(trajectories(turns), batch=2)])
    found = simulate_cluster(two, AT_ONCE)
    assert found.revocations == found.recalls == 1
    assert found.jobs[0].done_ms[0] < found.jobs[0].done_ms[1]
    assert found.tokens_lost == 0


def test_an_update_stops_the_engine_and_forgets_what_no_turn_uses() -> None:
    updated = replace(worker(0), update_ms=1000.0, pause_ms=40.0)
    made = trajectories([[TURN], [(100, 50, 2000.0), (10, 5, 0.0)]])
    two = world([updated], [job(made)], versions=2)
    found = simulate_cluster(two, AT_ONCE)
    assert len(found.jobs[0].published_ms) == 2
    assert found.reprefill_tokens == 150
    assert found.jobs[0].staleness.tolist() == [0, 1]


def test_a_trainer_that_stalls_stops_the_rollouts() -> None:
    made = random_trajectories(1, 64, 4)
    stalled = world([worker(0)], [job(made, batch=8, train_ms=1e12)], versions=2)
    found = simulate_cluster(replace(stalled, horizon_ms=600_000.0))
    assert found.ended_ms == 600_000
    assert len(found.jobs[0].published_ms) == 0
    assert np.count_nonzero(~np.isnan(found.jobs[0].started_ms)) == 16


def test_jobs_have_their_own_workers_trainers_and_versions() -> None:
    jobs = [replace(job(trajectories([[TURN]] * 3)), job=number) for number in (4, 9)]
    workers = [replace(worker(number), job=4 + 5 * number) for number in (0, 1)]
    slow = replace(jobs[1], train_ms=100.0)
    found = simulate_cluster(world(workers, [jobs[0], slow], versions=3), AT_ONCE)
    assert [len(one.published_ms) for one in found.jobs] == [3, 3]
    assert found.tokens_by_worker.tolist() == [150, 150]
    assert found.jobs[1].published_ms[-1] > found.jobs[0].published_ms[-1]


def test_whoever_watches_may_stop_it() -> None:
    seen: list[tuple[float, int]] = []

    def once(now_ms: float, events: int) -> bool:
        seen.append((now_ms, events))
        return False

    stalled = world([worker(0)], [job(random_trajectories(1, 8, 4), batch=8, train_ms=1e12)])
    found = simulate_cluster(stalled, SimOptions(on_progress=once))
    assert len(seen) == 1
    assert found.ended_ms < stalled.horizon_ms


def test_a_watcher_that_fails_ends_it() -> None:
    def fail(_now_ms: float, _events: int) -> bool:
        raise InvalidArgument("enough")

    stalled = world([worker(0)], [job(random_trajectories(1, 8, 4), batch=8, train_ms=1e12)])
    with pytest.raises(InvalidArgument, match="enough"):
        simulate_cluster(stalled, SimOptions(on_progress=fail))


def refused() -> dict[str, ClusterWorld]:
    good = one_turn(worker(0))
    (fine,) = good.jobs
    made = fine.trajectories
    borrowed = worker(0, lending([(0, 1.0, ROOM)]))
    return {
        "needs at least one job": replace(good, jobs=()),
        "no worker": replace(good, workers=()),
        "worker numbers must differ": replace(good, workers=(worker(0), worker(0))),
        "job numbers must differ": replace(good, jobs=(fine, fine)),
        "no job 3": replace(good, workers=(replace(worker(0), job=3),)),
        "versions=0": replace(good, versions=0),
        "horizon_ms": replace(good, horizon_ms=float("inf")),
        "seats=0": replace(good, workers=(replace(worker(0), seats=0),)),
        "BORROWED needs lending": replace(good, workers=(replace(borrowed, lending=None),)),
        "start at 0": one_turn(worker(0, lending([(1, 1.0, ROOM)]))),
        "from 0 to 1": one_turn(worker(0, lending([(0, 1.5, ROOM)]))),
        "never holds|ever holds": one_turn(worker(0, lending([(0, 1.0, 149)]))),
        "more than batch=3": replace(
            good, jobs=(job(trajectories([[TURN]] * 4, group_size=4), batch=3),)
        ),
        "output_tokens must be from 1": replace(
            good, jobs=(replace(fine, trajectories=replace(made, output_tokens=np.array([0]))),)
        ),
        "tool_ms must have": replace(
            good, jobs=(replace(fine, trajectories=replace(made, tool_ms=np.zeros(2))),)
        ),
        "weight": replace(good, jobs=(replace(fine, weight=0.0),)),
    }


@pytest.mark.parametrize("sentence", list(refused()))
def test_a_world_that_contradicts_itself_is_refused(sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        simulate_cluster(refused()[sentence])
