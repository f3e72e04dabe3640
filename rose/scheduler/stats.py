"""Statistics of the scheduler's core."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from rose.scheduler.worker import WorkerKind


class TrajectoryFate(Enum):
    """Fate of an admitted trajectory."""

    DONE = "done"
    STALE = "stale"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class JobStats:
    """Statistics of one job, as in SchedulerStats; `published` is the job's newest version."""

    published: int
    admitted: int
    done: int
    dropped: int
    consumed: int
    stale: int
    length_bias: float


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Current state, and counters since the beginning.

    Args:
        waiting: trajectories waiting for admission, now.
        environment: trajectories in their environment, now.
        queued: turns waiting for a worker, now.
        running: turns on a worker, now.
        recalled: turns being recalled, now.
        admitted: trajectories admitted.
        consumed: trajectories consumed by the trainer.
        done: trajectories ended by their environment.
        dropped: trajectories dropped, for any reason.
        stale: done trajectories that were more than max_staleness versions old when consumed;
            assumes that trajectories are consumed in the order in which they ended.
        recalls: turns recalled from a worker by the scheduler.
        outgrown: recalls that made room for a turn that became longer than expected.
        resumed: starts in the middle of a turn.
        stale_events: worker events without effect: late, repeated, or invalid.
        tokens_delivered: tokens delivered, each once.
        tokens_ignored: tokens reported but not delivered.
        reprefill_tokens: prompt tokens that a worker computed again.
        turns_by_kind: finished turns, by kind of the worker that finished them.
        used_kv_tokens: tokens of the capacity grant that are promised to turns, by worker, now.
        lengths_by_fate: number of trajectories with 0, 1, 2 to 3, 4 to 7 ... tokens. Stale ones
            also count as done.
        length_bias: mean tokens of dropped and stale trajectories, divided by the mean tokens of
            all other done trajectories; 1 if none was dropped or stale.
        jobs: statistics by job.
        hazards_per_s: expected revocations per second, by worker; 0 for dedicated workers.
        exposure_s: largest loss of work that the failure of one domain would cause to one job now,
            as the time that the workers of all other domains would need to compute it again.
        recovery_bound_s: time within which each turn of a borrowed worker would run again if all
            borrowed workers were revoked now. Infinite if a job has no dedicated worker.
    """

    waiting: int
    environment: int
    queued: int
    running: int
    recalled: int
    admitted: int
    consumed: int
    done: int
    dropped: int
    stale: int
    recalls: int
    outgrown: int
    resumed: int
    stale_events: int
    tokens_delivered: int
    tokens_ignored: int
    reprefill_tokens: int
    turns_by_kind: Mapping[WorkerKind, int]
    used_kv_tokens: Mapping[int, int]
    lengths_by_fate: Mapping[TrajectoryFate, tuple[int, ...]]
    length_bias: float
    jobs: Mapping[int, JobStats]
    hazards_per_s: Mapping[int, float]
    exposure_s: float
    recovery_bound_s: float
