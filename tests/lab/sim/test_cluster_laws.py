"""What holds in every world, whatever serving lends and takes back."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.scheduler.settings import PlacementPolicy
from rose_lab.sim.cluster.simulate import new_core, simulate_cluster
from rose_lab.sim.cluster.world import (
    ClusterOutcome,
    ClusterWorld,
    LendingTimeline,
    SimJob,
    TrainerMode,
)
from tests.lab.sim.record import record_cluster
from tests.lab.sim.worlds import ROOM, job, lending, random_trajectories, worker, world


def flapping(rng: np.random.Generator, mean_ms: float) -> LendingTimeline:
    """Return lending that is often nothing, less, or without compute."""
    at_ms = np.concatenate([[0.0], np.cumsum(0.5 + rng.exponential(mean_ms, 200))])
    share = rng.choice([0.0, 0.3, 1.0], len(at_ms), p=[0.1, 0.45, 0.45])
    kv_tokens = rng.choice([0, ROOM // 16, ROOM], len(at_ms), p=[0.3, 0.3, 0.4])
    kv_tokens[-1] = ROOM
    return LendingTimeline(at_ms, share, kv_tokens)


def all_at_once(_rng: np.random.Generator, every_ms: float) -> LendingTimeline:
    """Return lending that ends for everybody at the same moments."""
    on_and_off = [(place * every_ms, 1.0, ROOM * (1 - place % 2)) for place in range(100)]
    return lending([*on_and_off, (100 * every_ms, 1.0, ROOM)])


def after_each_prefill(_rng: np.random.Generator, _every_ms: float) -> LendingTimeline:
    """Return lending that ends when about one prompt is computed."""
    return all_at_once(_rng, 210.0)


@st.composite
def worlds(draw: st.DrawFn) -> ClusterWorld:
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    lent = draw(st.sampled_from([flapping, all_at_once, after_each_prefill]))
    every_ms = draw(st.sampled_from([40.0, 400.0, 3000.0]))
    # With updates of 300 ms, leases end during updates too.
    update = {"update_ms": draw(st.sampled_from([0.0, 300.0])), "pause_ms": 15.0}
    start_up_ms = draw(st.sampled_from([0.0, 25.0]))
    workers = [replace(worker(0), **update)]
    for number in range(1, draw(st.integers(2, 5))):
        one = replace(worker(number, lent(rng, every_ms)), **update)
        workers.append(replace(one, start_up_ms=start_up_ms))
    made = random_trajectories(draw(st.integers(0, 10_000)), 48, 4)
    trained = replace(
        job(made, batch=8, train_ms=draw(st.sampled_from([0.0, 500.0, 600_000.0]))),
        mode=draw(st.sampled_from(list(TrainerMode))),
        max_staleness=draw(st.integers(0, 2)),
    )
    policy = draw(st.sampled_from(list(PlacementPolicy)))
    return replace(world(workers, [trained], versions=4), policy=policy)


def check_job(found: ClusterOutcome, trained: SimJob) -> None:
    (one,) = found.jobs
    assert np.all(np.diff(one.published_ms) >= 0)
    done = ~np.isnan(one.done_ms)
    assert np.all(one.done_ms[done] > one.started_ms[done])
    assert np.all(done[one.staleness >= 0])
    used = one.used_by >= 0
    assert np.all(one.staleness[used] <= trained.max_staleness)
    assert np.all(one.staleness[(one.staleness >= 0) & ~used] > trained.max_staleness)
    versions = np.bincount(one.used_by[used], minlength=len(one.published_ms) + 2)
    assert versions[0] == 0
    learned = versions[1 : len(one.published_ms) + 1]
    assert np.all((learned > 0) & (learned <= trained.batch))


@given(worlds())
def test_every_token_is_delivered_once_and_every_world_ends(drawn: ClusterWorld) -> None:
    found = simulate_cluster(drawn)
    (trained,), (one,) = drawn.jobs, found.jobs
    is_used_up = not np.isnan(one.done_ms).any()
    assert len(one.published_ms) == drawn.versions or is_used_up
    assert found.ended_ms < drawn.horizon_ms
    assert found.tokens_lost == 0
    assert one.dropped == 0
    assert found.tokens_by_worker.sum() == one.tokens_delivered
    done = ~np.isnan(one.done_ms)
    said = np.add.reduceat(trained.trajectories.output_tokens, trained.trajectories.first_turn[:-1])
    assert one.tokens_delivered >= said[done].sum()
    assert np.all(found.busy_ms_by_worker <= found.ended_ms + 1)
    recovered = found.recovery_ms[~np.isnan(found.recovery_ms)]
    assert np.all(recovered >= 0)
    assert (found.revocations == 0) == (len(found.recovery_ms) == 0)
    check_job(found, trained)


@settings(max_examples=15, deadline=None)
@given(worlds())
def test_equal_worlds_give_equal_outcomes(drawn: ClusterWorld) -> None:
    first, second = simulate_cluster(drawn), simulate_cluster(drawn)
    assert first.digest == second.digest
    assert first.ended_ms == second.ended_ms
    assert np.array_equal(first.recovery_ms, second.recovery_ms, equal_nan=True)
    for name in ("started_ms", "done_ms"):
        arrays = [getattr(found.jobs[0], name) for found in (first, second)]
        assert np.array_equal(*arrays, equal_nan=True)


@settings(max_examples=10, deadline=None)
@given(worlds())
def test_the_scheduler_of_production_decides_the_same(drawn: ClusterWorld) -> None:
    found, steps = record_cluster(drawn)
    assert found.digest == simulate_cluster(drawn).digest
    core = new_core(drawn)
    for step in steps:
        assert core.step(step.events, step.now_ns) == step.actions
    stats = core.stats()
    assert stats.tokens_delivered == found.jobs[0].tokens_delivered
    assert sum(len(step.events) for step in steps) == found.events
