"""What a cluster is to the simulator: workers, what they are lent, trajectories, a trainer, a net.

Columns are NumPy arrays, so that a thousand GPUs and a million turns are a few of them. Times are
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
    """How long the steps of a rollout engine take when it has its GPUs to itself.

    Args:
        prefill_tokens_per_s: > 0.
        decode_step_ms: of a step without sequences, > 0.
        decode_ms_per_sequence: what each sequence adds, >= 0.
        decode_ms_per_context_token: what each token of their contexts adds, >= 0.
    """

    prefill_tokens_per_s: float
    decode_step_ms: float
    decode_ms_per_sequence: float
    decode_ms_per_context_token: float


@dataclass(frozen=True, slots=True)
class Lending:
    """What serving lends of a device over time: it holds from each time to the next.

    Args:
        at_ms: (k,) float64, ascending, the first is 0.
        share: (k,) float64 in [0, 1], of the device's compute that rollouts get.
        kv_tokens: (k,) int64, >= 0, what rollouts may hold; less than before revokes, 0 all.
    """

    at_ms: npt.NDArray[np.float64]
    share: npt.NDArray[np.float64]
    kv_tokens: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SimWorker:
    """One rollout engine.

    Args:
        number: >= 0, unique.
        kind: dedicated or borrowed.
        domain: what fails, or is taken back, together.
        job: whose trajectories it runs.
        times: of its steps.
        seats: turns it runs at once, > 0.
        kv_tokens: what its contexts may hold, > 0; a borrowed one's lending says less at times.
        start_up_ms: from being lent again after nothing was lent to its first turn, >= 0.
        update_ms: from a version's publication to its commit here, in which it runs on, >= 0.
        pause_ms: in which it stands still for the commit, >= 0.
        lending: None for a dedicated worker.
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
    lending: Lending | None


@dataclass(frozen=True, slots=True)
class Trajectories:
    """What trajectories of a job are made of, in the order in which they want to start.

    Args:
        first_turn: (n + 1,) int64: turns `first_turn[i]` to `first_turn[i + 1]` are those of i.
        heard_tokens: (t,) int64, > 0, what the environment adds to the context before each turn.
        said_tokens: (t,) int64, > 0, what the turn generates.
        tool_ms: (t,) float64, >= 0, from the end of the turn to the next one's beginning.
        group: (n,) int64, ascending; those of a group share a task and follow each other.
    """

    first_turn: npt.NDArray[np.int64]
    heard_tokens: npt.NDArray[np.int64]
    said_tokens: npt.NDArray[np.int64]
    tool_ms: npt.NDArray[np.float64]
    group: npt.NDArray[np.int64]


class TrainerMode(Enum):
    """When the trainer learns from what."""

    SYNCHRONOUS = "synchronous"
    """The next trajectories start when the version that learned from the last is out."""
    ONE_STEP_OFF = "one-step-off"
    """The next batch is rolled out while the trainer learns from the last."""
    ASYNCHRONOUS = "asynchronous"
    """Trajectories start as staleness admits; the trainer takes whoever is done."""


@dataclass(frozen=True, slots=True)
class SimJob:
    """One RL job.

    Args:
        job: its number, >= 0.
        trajectories: at least as many as its versions take, or it ends when they are used up.
        mode: of its trainer.
        batch: trajectories of a version, > 0; whole groups.
        train_ms: how long the trainer learns from a batch, >= 0.
        max_staleness: in versions, >= 0.
        weight: of its fair share of what is lent, > 0.
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
    """All that a simulation is made of. Equal worlds give equal outcomes, to the last byte.

    Args:
        workers: of all jobs.
        jobs: at least one.
        settings: of the scheduler; staleness and batch are the jobs' own.
        policy: who decides where a turn runs.
        versions: of each job, after which it ends.
        horizon_ms: the simulation ends here at the latest, > 0.
    """

    workers: tuple[SimWorker, ...]
    jobs: tuple[SimJob, ...]
    settings: SchedulerSettings
    policy: PlacementPolicy
    versions: int
    horizon_ms: float


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of a job.

    Args:
        published_ms: (v,) float64, when each version was published, ascending.
        rollout_ms: (v,) float64, of each version: from the first admission of its batch to the
            last trajectory's end.
        started_ms: (n,) float64 of each trajectory; NaN if it never started.
        done_ms: (n,) float64; NaN if it was not done.
        used_by: (n,) int64, the version that learned from it; -1 if none did.
        staleness: (n,) int64, versions between its oldest token and its use, or its being thrown
            away because there were too many of them (then used_by is -1); -1 if neither happened.
        tokens_delivered: each generated token of a turn once.
        dropped: trajectories that the scheduler gave up.
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
    """What a simulation found.

    Args:
        jobs: in the order of the world's.
        ended_ms: when the last version was published, or the horizon.
        tokens_by_worker: (w,) int64, generated, in the order of the world's workers.
        busy_ms_by_worker: (w,) float64, of its own time in which it computed: a second with half
            of the device is half a second.
        revocations: leases that serving ended or shrank while turns were in them.
        recalls: turns that were taken from a worker before their end.
        reprefill_tokens: computed again because a turn came to another worker.
        tokens_lost: generated, reported by a worker, and not delivered: must be 0.
        recovery_ms: (b,) float64, for each moment at which leases were revoked: how long until
            every turn that was on them ran again; NaN if the end came first.
        events: that the scheduler was told.
        decisions: turns that were placed.
        digest: of every action of the scheduler, in order: 16 hex digits.
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
