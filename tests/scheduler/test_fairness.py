"""Several jobs on one device: what each gets of it, over its weight."""

import random
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from rose.scheduler.events import (
    Action,
    GrantChanged,
    JobJoined,
    Start,
    TrajectoryCreated,
    TurnReady,
)
from rose.scheduler.worker import TurnEnd
from tests.scheduler.rig import BORROWED, DEDICATED, Rig, ended

NEED_MAX = 120


class Sharers:
    """Jobs with a worker each on one device, and what each was promised there."""

    def __init__(self, weights: list[float], *, lead: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(fair_lead_tokens=lead, wait_max_ms=1e8, batch_trajectories=100_000)
        self.weights = weights
        self.served = [0.0] * len(weights)
        self.history = [list(self.served)]
        self.running: dict[int, Start] = {}
        self.needs: dict[int, int] = {}
        self.next = 0
        for job, weight in enumerate(weights):
            self.rig.step(JobJoined(job, 100_000, 1, weight))
            self.rig.join(job, BORROWED, seats=6, kv_tokens=500, job=job, device=9)

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self.running[action.trajectory] = action
                job = action.trajectory % len(self.weights)
                self.served[job] += self.needs[action.trajectory] / self.weights[job]
        self.history.append(list(self.served))

    def queue(self, job: int, need: int | None = None) -> None:
        trajectory = self.next * len(self.weights) + job
        self.next += 1
        need = need or self.rng.randint(2, NEED_MAX)
        self.needs[trajectory] = need
        self.take(self.rig.step(TrajectoryCreated(trajectory, 0, job)))
        self.take(self.rig.step(TurnReady(trajectory, 0, need - 1, 1)))

    def finish(self, trajectory: int) -> None:
        start = self.running.pop(trajectory)
        self.take(self.rig.step(ended(start, TurnEnd.FINISHED, 0)))

    def finish_one(self) -> None:
        self.finish(self.rng.choice(sorted(self.running)))


@given(
    seed=st.integers(0, 2**32 - 1),
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2, max_size=3),
    lead=st.sampled_from([0, 50, 400]),
)
def test_weighted_service_of_backlogged_jobs_differs_by_the_bound_at_most(
    seed: int, weights: list[float], lead: int
) -> None:
    sharers = Sharers(weights, lead=lead, seed=seed)
    for _ in range(130):  # more than are finished below: all stay backlogged
        for job in range(len(weights)):
            sharers.queue(job, need=NEED_MAX if sharers.rng.random() < 0.1 else None)
    sharers.history = sharers.history[-1:]
    for _ in range(120):
        sharers.finish_one()
        queued = [job for job in range(len(weights)) if sharers.rng.random() < 0.5]
        for job in queued:
            sharers.queue(job)
    for one, other in pairwise(range(len(weights))):
        ahead = [served[one] - served[other] for served in sharers.history]
        bound = 2 * lead + NEED_MAX / weights[one] + NEED_MAX / weights[other]
        assert max(ahead) - min(ahead) <= bound + 1e-6
    assert min(sharers.served) > 0


def test_job_that_is_ahead_runs_elsewhere() -> None:
    sharers = Sharers([1.0, 1.0], lead=0, seed=5)
    for _ in range(12):
        sharers.queue(0, need=100)
        sharers.queue(1, need=100)
    sharers.rig.join(7, DEDICATED, kv_tokens=2000, seats=20, job=0)
    assert sharers.rig.core.stats().used_kv_tokens[7] > 500


def test_device_that_comes_back_goes_on_where_it_was() -> None:
    sharers = Sharers([1.0, 1.0], lead=0, seed=6)
    for _ in range(30):
        sharers.queue(0, need=100)
        sharers.queue(1, need=100)
    for epoch in (2, 3):
        for job in range(2):
            sharers.take(sharers.rig.step(GrantChanged(job, epoch, 500, 0.0), after_ms=10_000))
    sharers.running.clear()
    assert abs(sharers.served[0] - sharers.served[1]) <= 200
