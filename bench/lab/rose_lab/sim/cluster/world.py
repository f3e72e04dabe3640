"""The simulator's input and output: workers, loans, trajectories, trainers.

Columns are NumPy arrays, so a thousand GPUs and a million turns take few objects. Times are
milliseconds since the start of the simulation.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.worker import WorkerKind


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of a rollout engine that has its GPUs to itself.

    Args:
        prefill_tokens_per_s: prompt throughput, > 0.
        decode_step_ms: time of a step without sequences, > 0.
        decode_ms_per_sequence: time that each sequence adds, >= 0.
        decode_ms_per_context_token: time that each token of the sequences' contexts adds to a step,
            >= 0.
    """

    prefill_tokens_per_s: float
    decode_step_ms: float
    decode_ms_per_sequence: float
    decode_ms_per_context_token: float


@dataclass(frozen=True, slots=True)
class LendingTimeline:
    """Loan of a device over time; each row applies until the next.

    Args:
        at_ms: (k,) float64 start times, ascending from 0.
        share: (k,) float64 in [0, 1], rollouts' share of the device's compute.
        kv_tokens: (k,) int64, >= 0, capacity for rollouts; a decrease revokes KV, 0 revokes all.
    """

    at_ms: npt.NDArray[np.float64]
    share: npt.NDArray[np.float64]
    kv_tokens: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SimWorker:
    """One rollout engine.

    Args:
        number: unique number, >= 0.
        kind: dedicated or borrowed.
        domain: failure domain; the workers of one domain fail or are revoked together.
        job: job whose trajectories it runs.
        times: step times.
        seats: turns that it runs at once, > 0.
        kv_tokens: capacity for contexts, > 0; a borrowed worker's loan may be smaller.
        start_up_ms: delay of the first turn after a time without a loan, >= 0.
        update_ms: time from a version's publication to its commit, while the worker keeps
            running, >= 0.
        pause_ms: pause of a commit, >= 0.
        lending: loan over time; None for a dedicated worker.
    """

    number: int
    kind: WorkerKind
    domain: int
    job: int
    times: StepTimes
    seats: int
    kv_tokens: int
    start_up_ms: float
    update_ms: float
    pause_ms: float
    lending: LendingTimeline | None


@dataclass(frozen=True, slots=True)
class Trajectories:
    """Trajectories of a job, in the order in which they ask to start.

    Args:
        first_turn: (n + 1,) int64; trajectory i has the turns from `first_turn[i]` up to, but not
            including, `first_turn[i + 1]`.
        input_tokens: (t,) int64, > 0, input tokens that the environment adds before each turn.
        output_tokens: (t,) int64, > 0, output tokens of each turn.
        tool_ms: (t,) float64, >= 0, time from the end of the turn to the start of the next.
        group: (n,) int64, ascending; trajectories of one group share a task.
    """

    first_turn: npt.NDArray[np.int64]
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    tool_ms: npt.NDArray[np.float64]
    group: npt.NDArray[np.int64]


class TrainerMode(Enum):
    """How generation and training alternate."""

    SYNCHRONOUS = "synchronous"
    """A batch starts once the version that was learned from the previous batch is published."""
    ONE_STEP_OFF = "one-step-off"
    """A batch is generated while the trainer learns from the previous batch."""
    ASYNCHRONOUS = "asynchronous"
    """Trajectories start as soon as staleness allows; the trainer takes finished trajectories."""


@dataclass(frozen=True, slots=True)
class SimJob:
    """One RL job.

    Args:
        job: number of the job, >= 0.
        trajectories: trajectories of the job; the job ends when they are used up, even before its
            last version.
        mode: mode of its trainer.
        batch: trajectories per version, > 0, in whole groups.
        train_ms: training time per batch, >= 0.
        max_staleness: largest staleness in versions, >= 0.
        weight: relative share of borrowed workers, > 0.
    """

    job: int
    trajectories: Trajectories
    mode: TrainerMode
    batch: int
    train_ms: float
    max_staleness: int
    weight: float


@dataclass(frozen=True, slots=True)
class ClusterWorld:
    """Input of a simulation. Equal worlds give bit-identical outcomes.

    Args:
        workers: workers of all jobs.
        jobs: jobs, at least one.
        settings: settings of the scheduler; jobs have their own staleness and batch.
        policy: placement policy.
        versions: number of versions after which each job ends.
        horizon_ms: latest end of the simulation, > 0.
    """

    workers: tuple[SimWorker, ...]
    jobs: tuple[SimJob, ...]
    settings: SchedulerSettings
    policy: PlacementPolicy
    versions: int
    horizon_ms: float


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Result of a job.

    Args:
        published_ms: (v,) float64, time of each version's publication, ascending.
        rollout_ms: (v,) float64, time from the first admission of each version's batch to the end
            of its last trajectory.
        started_ms: (n,) float64 start of each trajectory; NaN if it never started.
        done_ms: (n,) float64 end of each trajectory; NaN if it did not end.
        used_by: (n,) int64, version that was learned from each trajectory; -1 if none.
        staleness: (n,) int64, versions between each trajectory's oldest token and its use, or its
            discard as too old (`used_by` is then -1); -1 if it was neither used nor discarded.
        tokens_delivered: generated tokens, each once.
        dropped: trajectories dropped by the scheduler.
    """

    published_ms: npt.NDArray[np.float64]
    rollout_ms: npt.NDArray[np.float64]
    started_ms: npt.NDArray[np.float64]
    done_ms: npt.NDArray[np.float64]
    used_by: npt.NDArray[np.int64]
    staleness: npt.NDArray[np.int64]
    tokens_delivered: int
    dropped: int


@dataclass(frozen=True, slots=True)
class ClusterOutcome:
    """Result of a simulation.

    Args:
        jobs: results in the order of the world's jobs.
        ended_ms: publication of the last version, or the horizon.
        tokens_by_worker: (w,) int64 generated tokens, in the order of the world's workers.
        busy_ms_by_worker: (w,) float64 computing time, weighted by the share of the device: a
            second on half of a device counts as half a second.
        revocations: loans that serving ended or shrank while turns were using them.
        recalls: turns recalled from a worker before their end.
        reprefill_tokens: prompt tokens computed again because a turn moved.
        tokens_lost: tokens reported by a worker and not delivered: must be 0.
        recovery_ms: (b,) float64, for each time at which loans were revoked, the delay until every
            affected turn ran again; NaN if the simulation ended before.
        events: number of events of the scheduler.
        decisions: number of placed turns.
        digest: digest of all actions of the scheduler, in order: 16 hex digits.
    """

    jobs: tuple[JobOutcome, ...]
    ended_ms: float
    tokens_by_worker: npt.NDArray[np.int64]
    busy_ms_by_worker: npt.NDArray[np.float64]
    revocations: int
    recalls: int
    reprefill_tokens: int
    tokens_lost: int
    recovery_ms: npt.NDArray[np.float64]
    events: int
    decisions: int
    digest: str
