"""A cluster of many borrowed devices, lent for seconds at a time, for the simulator's own speed."""

import numpy as np

from rose.scheduler import PlacementPolicy, SchedulerSettings
from rose.scheduler.worker import WorkerKind
from rose.sim.cluster.world import (
    ClusterWorld,
    Lending,
    SimJob,
    SimWorker,
    StepTimes,
    TrainerMode,
    Trajectories,
)

SEATS = 16
KV_TOKENS = 400_000
TIMES = StepTimes(20_000.0, 10.0, 0.1, 3e-5)
_MS_PER_S = 1000.0


def fluid_cluster(devices: int, *, seconds: int, seed: int = 0) -> ClusterWorld:
    """Return three of four devices borrowed, each with another share every second.

    Turns have log-normal lengths and tools, trajectories one to eight of them in groups of 16; nine
    of ten seats can be in use at once.
    """
    rng = np.random.default_rng(seed)
    workers = tuple(_worker(rng, number, seconds) for number in range(devices))
    in_flight = max(32, int(0.9 * devices * SEATS) // 32 * 32)
    made = _trajectories(rng, 16 * (in_flight * max(8, seconds // 100) // 16))
    job = SimJob(0, made, TrainerMode.ASYNCHRONOUS, in_flight // 2, 30_000.0, 1, 1.0)
    return ClusterWorld(
        workers=workers,
        jobs=(job,),
        settings=SchedulerSettings(),
        policy=PlacementPolicy.JOINT,
        versions=1_000_000,
        horizon_ms=seconds * _MS_PER_S,
    )


def _worker(rng: np.random.Generator, number: int, seconds: int) -> SimWorker:
    is_borrowed = number % 4 > 0
    return SimWorker(
        number=number,
        kind=WorkerKind.BORROWED if is_borrowed else WorkerKind.DEDICATED,
        domain=number // 8,
        job=0,
        times=TIMES,
        seats=SEATS,
        kv_tokens=KV_TOKENS,
        start_up_ms=2000.0,
        update_ms=5000.0,
        pause_ms=200.0,
        lending=_lending(rng, seconds) if is_borrowed else None,
    )


def _lending(rng: np.random.Generator, seconds: int) -> Lending:
    at_ms = np.arange(seconds) * _MS_PER_S + rng.uniform(0, _MS_PER_S)
    at_ms[0] = 0.0
    share = rng.uniform(0.2, 0.9, seconds)
    is_revoked = rng.random(seconds) < 1 / 500
    return Lending(at_ms, share, np.where(is_revoked, 0, KV_TOKENS))


def _trajectories(rng: np.random.Generator, count: int) -> Trajectories:
    first = np.concatenate([[0], np.cumsum(rng.integers(1, 9, count))])
    turns = int(first[-1])
    said = np.minimum(4000, 1 + rng.lognormal(6, 1, turns)).astype(np.int64)
    heard, tool_ms = rng.integers(50, 1000, turns), rng.lognormal(7, 1, turns)
    return Trajectories(first, heard, said, tool_ms, np.arange(count) // 16)
