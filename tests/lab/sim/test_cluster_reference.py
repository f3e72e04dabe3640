"""The simulator against one that goes step by step in plain Python."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rose_lab.sim.cluster.simulate import SimOptions, simulate_cluster
from rose_lab.sim.cluster.world import ClusterWorld, StepTimes, TrainerMode
from tests.lab.reference.cluster import PlainCluster
from tests.lab.sim.worlds import job, random_trajectories, worker, world

TIMES = StepTimes(5000.0, 10.0, 0.5, 0.0003)
CHUNK = 128


def small_world(seed: int, mode: TrainerMode, staleness: int, update_ms: float) -> ClusterWorld:
    one = replace(worker(0, times=TIMES), seats=64, kv_tokens=1 << 20)
    # An asynchronous trainer's places in line change while turns wait for weights: there a worker
    # has them at once, and nobody waits.
    if mode is not TrainerMode.ASYNCHRONOUS:
        one = replace(one, update_ms=update_ms, pause_ms=20.0)
    made = random_trajectories(seed, 24, 2)
    trained = replace(job(made, batch=6, train_ms=150.0), mode=mode, max_staleness=staleness)
    return world([one], [trained], versions=3)


@pytest.mark.parametrize("mode", list(TrainerMode))
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    staleness=st.integers(0, 2),
    update_ms=st.sampled_from([0.0, 35.0, 700.0]),
)
@example(seed=2259, staleness=2, update_ms=0.0)  # a batch is complete as the run ends
def test_it_agrees_with_plain_steps(
    mode: TrainerMode, seed: int, staleness: int, update_ms: float
) -> None:
    small = small_world(seed, mode, staleness, update_ms)
    want = PlainCluster(small, CHUNK).run()
    found = simulate_cluster(small, SimOptions(gather_ms=0.0, chunk_tokens=CHUNK)).jobs[0]
    assert found.published_ms == pytest.approx(want.published_ms, abs=0.01)
    ended_ms = found.published_ms[-1]
    done = {i: at for i, at in want.done_ms.items() if at <= ended_ms - 0.01}
    assert {i: found.done_ms[i] for i in done} == pytest.approx(done, abs=0.01)
    # A batch that is complete as the run ends is in no version.
    used_by = {i: n for i, n in want.used_by.items() if n <= len(want.published_ms)}
    assert {i: found.used_by[i] for i in used_by} == used_by
    learned = {i: age for i, age in want.staleness.items() if i in used_by}
    assert {i: found.staleness[i] for i in learned} == learned


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_jumps_are_the_same_as_steps(seed: int) -> None:
    small = small_world(seed, TrainerMode.ASYNCHRONOUS, 1, 35.0)
    jumps = simulate_cluster(small)
    steps = simulate_cluster(small, SimOptions(is_stepwise=True))
    assert jumps.ended_ms == pytest.approx(steps.ended_ms, rel=1e-6)
    assert np.array_equal(jumps.jobs[0].used_by, steps.jobs[0].used_by)
    assert jumps.jobs[0].done_ms == pytest.approx(steps.jobs[0].done_ms, rel=1e-6, nan_ok=True)
