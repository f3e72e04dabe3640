"""Small clusters for tests."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.worker import WorkerKind
from rose_lab.sim.cluster.simulate import SimOptions
from rose_lab.sim.cluster.world import (
    ClusterWorld,
    LendingTimeline,
    SimJob,
    SimWorker,
    StepTimes,
    TrainerMode,
    Trajectories,
)

# A token of a prompt takes 1 ms; a step 10 ms, and 1 ms for each sequence.
TIMES: Final = StepTimes(1000.0, 10.0, 1.0, 0.0)
ROOM: Final = 100_000
# News is input at once, so that times can be worked out by hand.
AT_ONCE: Final = SimOptions(gather_ms=0.0)


def lending(rows: Sequence[tuple[float, float, int]]) -> LendingTimeline:
    """Return rows of (from, share, tokens)."""
    at_ms, share, kv_tokens = zip(*rows, strict=True)
    return LendingTimeline(np.array(at_ms), np.array(share), np.array(kv_tokens))


def worker(number: int, lent: LendingTimeline | None = None, times: StepTimes = TIMES) -> SimWorker:
    """Return a dedicated worker, or one that is borrowed if something is `lent`."""
    return SimWorker(
        number=number,
        kind=WorkerKind.DEDICATED if lent is None else WorkerKind.BORROWED,
        domain=number,
        job=0,
        times=times,
        seats=8,
        kv_tokens=ROOM,
        start_up_ms=0.0,
        update_ms=0.0,
        pause_ms=0.0,
        lending=lent,
    )


def trajectories(
    turns: Sequence[Sequence[tuple[int, int, float]]], group_size: int = 1
) -> Trajectories:
    """Return trajectories of turns of (input, output, tool)."""
    flat = [turn for one in turns for turn in one]
    return Trajectories(
        first_turn=np.cumsum([0, *(len(one) for one in turns)]),
        input_tokens=np.array([inputs for inputs, _, _ in flat]),
        output_tokens=np.array([output for _, output, _ in flat]),
        tool_ms=np.array([tool for _, _, tool in flat], dtype=np.float64),
        group=np.arange(len(turns)) // group_size,
    )


def random_trajectories(seed: int, count: int, group_size: int) -> Trajectories:
    """Return trajectories of one to four turns of very different lengths."""
    rng = np.random.default_rng(seed)
    turns = [
        [
            (int(rng.integers(1, 400)), 1 + int(rng.exponential(40)), float(rng.exponential(200)))
            for _ in range(rng.integers(1, 5))
        ]
        for _ in range(count)
    ]
    return trajectories(turns, group_size)


def job(made: Trajectories, *, batch: int = 1, train_ms: float = 0.0) -> SimJob:
    """Return an asynchronous job with a staleness of one version."""
    return SimJob(0, made, TrainerMode.ASYNCHRONOUS, batch, train_ms, 1, 1.0)


def world(workers: Sequence[SimWorker], jobs: Sequence[SimJob], versions: int = 1) -> ClusterWorld:
    """Return a world that lasts for at most a day."""
    settings = SchedulerSettings(tuning={"wait_max_ms": 5000.0})
    policy = PlacementPolicy.JOINT
    return ClusterWorld(tuple(workers), tuple(jobs), settings, policy, versions, 86_400_000.0)
