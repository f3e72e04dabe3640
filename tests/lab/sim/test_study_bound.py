"""The lower bound of rolling out is one, in every world and mode, and close where it can be."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_lab.sim.cluster.simulate import simulate_cluster
from rose_lab.sim.cluster.world import ClusterWorld, StepTimes, TrainerMode
from rose_lab.sim.study.bound import rollout_bounds_ms, trajectories_alone_ms
from tests.lab.sim.worlds import (
    AT_ONCE,
    ROOM,
    TIMES,
    job,
    lending,
    random_trajectories,
    trajectories,
    worker,
    world,
)

READS = replace(TIMES, decode_ms_per_context_token=0.01)
SLOW_TO_SAY = StepTimes(4000.0, 60.0, 2.0, 0.002)


@st.composite
def worlds(draw: st.DrawFn) -> ClusterWorld:
    kinds = draw(st.lists(st.sampled_from([TIMES, READS, SLOW_TO_SAY]), min_size=1, max_size=4))
    share = draw(st.sampled_from([0.4, 1.0]))
    lent = lending([(0.0, share, ROOM), (1500.0, share / 2, ROOM)])
    workers = [
        worker(number, lent if number and draw(st.booleans()) else None, times)
        for number, times in enumerate(kinds)
    ]
    made = replace(
        job(random_trajectories(draw(st.integers(0, 10_000)), 48, 4), batch=8, train_ms=300.0),
        mode=draw(st.sampled_from(list(TrainerMode))),
        max_staleness=draw(st.integers(0, 2)),
    )
    return world(workers, [made], versions=4)


@given(worlds())
def test_no_batch_is_rolled_out_faster_than_its_bound(drawn: ClusterWorld) -> None:
    (found,) = simulate_cluster(drawn).jobs
    bounds_ms = rollout_bounds_ms(drawn, found, job=0)
    assert len(bounds_ms) == len(found.rollout_ms) > 0
    assert np.all(bounds_ms > 0)
    # Each jump of an engine ends a nanosecond late at most, and none early.
    assert np.all(found.rollout_ms >= bounds_ms - 1e-3)


@given(worlds())
def test_no_trajectory_is_faster_than_alone_on_the_best(drawn: ClusterWorld) -> None:
    (found,) = simulate_cluster(drawn).jobs
    alone_ms = trajectories_alone_ms(drawn.jobs[0], [one.times for one in drawn.workers])
    is_done = ~np.isnan(found.done_ms)
    taken_ms = (found.done_ms - found.started_ms)[is_done]
    assert np.all(taken_ms >= alone_ms[is_done] - 1e-3)


def test_one_alone_on_one_worker_takes_exactly_its_bound() -> None:
    turns = [[(100, 3, 50.0), (10, 2, 999.0)]]
    alone = world([worker(0, times=READS)], [job(trajectories(turns))])
    (found,) = simulate_cluster(alone, AT_ONCE).jobs
    bounds_ms = rollout_bounds_ms(alone, found, job=0)
    # 110 of input; 5 steps of 11 ms; contexts of 100, 101, 102, then 113 and 114; one tool.
    assert bounds_ms == pytest.approx([110 + 5 * 11 + 0.01 * 530 + 50])
    assert found.rollout_ms == pytest.approx(bounds_ms, abs=1.0)


def test_many_alike_take_close_to_their_share_of_the_work() -> None:
    turns = [[(200, 40, 0.0)]] * 64
    many = world([worker(0), worker(1)], [job(trajectories(turns), batch=64)])
    (found,) = simulate_cluster(many).jobs
    (bound_ms,) = rollout_bounds_ms(many, found, job=0)
    # 32 on each: 200 ms of prompt and 40 tokens at an eighth of a step and one of its own.
    assert bound_ms == pytest.approx(32 * (200 + 40 * (10 / 8 + 1)))
    assert found.rollout_ms[0] < 1.35 * bound_ms


def test_workers_that_are_better_at_different_things_divide_the_work_better_than_evenly() -> None:
    turns = [[(400, 40, 0.0)]] * 64
    made = job(trajectories(turns), batch=64)
    hearing = replace(SLOW_TO_SAY, decode_ms_per_context_token=0.0)
    mixed = world([worker(0), worker(1, times=hearing)], [made])
    (found,) = simulate_cluster(mixed).jobs
    (bound_ms,) = rollout_bounds_ms(mixed, found, job=0)
    inputs, output = 64 * 400, 64 * 40
    best_ms = min(
        max(
            mine * inputs + says * output * (10 / 8 + 1),
            (1 - mine) * inputs / 4 + (1 - says) * output * (60 / 8 + 2),
        )
        for mine in np.linspace(0, 1, 101)
        for says in np.linspace(0, 1, 101)
    )
    assert 0 < bound_ms <= best_ms
