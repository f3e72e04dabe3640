"""What the scheduler is told, and what it wants done.

Three more events come from `rose.scheduler.worker` as they are: LeaseChanged, WorkerLost and
VersionCommitted. A TurnOutput becomes a TurnProgress and, with an `end`, a TurnEnded behind it, in
one step: the core counts tokens, whoever drives it keeps them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, TypeAlias

from rose.scheduler.coerce import COUNT_MAX, Count, real, whole
from rose.scheduler.worker import LeaseChanged, TurnEnd, VersionCommitted, WorkerKind, WorkerLost

# ---- events of the front: who drives the scheduler. They must not contradict each other.


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker is there; it may run turns once it reports a lease.

    One that was lost may join again under its number, but its leases must go on where they were:
    old epochs stay dead. The fields are those of `Capabilities`, and what each token of all
    contexts adds to a step.
    """

    worker: int
    kind: WorkerKind
    domain: int
    seats: int
    prefill_tokens_per_s: float
    decode_step_ms: float
    decode_ms_per_sequence: float
    version: int
    job: int = 0
    device: int | None = None
    decode_ms_per_context_token: float = 0.0


@dataclass(frozen=True, slots=True)
class VersionPublished:
    """A job's trainer has published a version; one not higher than before says nothing."""

    version: Count
    job: Count = 0


@dataclass(frozen=True, slots=True)
class TrajectoryCreated:
    """A trajectory wants to start; Admit lets it. Its number was never used before."""

    trajectory: int
    group: int
    job: int = 0


@dataclass(frozen=True, slots=True)
class TurnReady:
    """The next turn of an admitted trajectory may run: the first, or one after a tool."""

    trajectory: int
    turn: int
    context_tokens: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class TrajectoryEnded:
    """The environment is over. In the middle of a turn it gives the trajectory up: Drop follows."""

    trajectory: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """A job's trainer has used, or thrown away, so many trajectories more that had ended."""

    trajectories: Count
    job: Count = 0


@dataclass(frozen=True, slots=True)
class JobJoined:
    """A job is there, or has new values. One that was never told of has those of the settings.

    Args:
        job: its number.
        batch_trajectories: what its trainer takes for one version.
        max_staleness: versions between the start of a trajectory and its use.
        weight: of its fair share of devices that several jobs share; 1 if never told.
    """

    job: Count
    batch_trajectories: Annotated[int, whole(1, COUNT_MAX >> 1)]
    max_staleness: Annotated[int, whole(0, 1 << 20)]
    weight: Annotated[float, real(1e-6, 1e6)]


# ---- events of workers. They may be late, doubled, or about something long gone.


@dataclass(frozen=True, slots=True)
class TurnProgress:
    """Tokens of a `TurnOutput`: how many, and the oldest weights that gave one of them."""

    trajectory: int
    turn: int
    worker: int
    lease_epoch: int
    first_token: int
    tokens: int
    version_min: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A turn left its worker.

    `tokens` is how many the turn had by then, those generated elsewhere included: what overtook the
    last tokens on the way is found out. None when no event can overtake another.
    """

    trajectory: int
    turn: int
    worker: int
    lease_epoch: int
    end: TurnEnd
    tokens: int | None = None


Event: TypeAlias = (
    WorkerJoined
    | LeaseChanged
    | WorkerLost
    | VersionPublished
    | VersionCommitted
    | TrajectoryCreated
    | TurnReady
    | TurnProgress
    | TurnEnded
    | TrajectoryEnded
    | Consumed
    | JobJoined
)

# ---- actions, to be carried out in their order.


class DropReason(Enum):
    """Why nobody will have a trajectory."""

    FAILED = "a turn of it failed on every attempt"
    GIVEN_UP = "it was ended in the middle of a turn, or before it was admitted"


@dataclass(frozen=True, slots=True)
class Admit:
    """A trajectory may start: its first TurnReady is welcome."""

    trajectory: int


@dataclass(frozen=True, slots=True)
class Start:
    """Run a turn, or the rest of one, of which `first_token` tokens are in the prompt already.

    Whoever has seen the turn's last token already (a stop token was delivered, and the report of
    the end was lost) answers with TurnEnded(FINISHED) instead of running anything.
    """

    trajectory: int
    turn: int
    worker: int
    lease_epoch: int
    first_token: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Take a turn back from a worker; one that does not have it ignores that."""

    trajectory: int
    worker: int
    lease_epoch: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Take tokens of a TurnProgress: they are the turn's next ones.

    Args:
        trajectory: whose turn.
        turn: of the trajectory.
        event: place of the TurnProgress among the events of this step.
        skip: how many of its tokens to pass over: they were delivered before.
        tokens: how many to take then, > 0. Those behind them are beyond the turn's limit.
    """

    trajectory: int
    turn: int
    event: int
    skip: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TurnDone:
    """All of a turn was delivered."""

    trajectory: int
    turn: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a trajectory; nothing more may be said of it."""

    trajectory: int
    reason: DropReason


Action: TypeAlias = Admit | Start | Stop | Deliver | TurnDone | Drop


class TrajectoryFate(Enum):
    """What became of a trajectory that had been admitted."""

    DONE = "done"
    STALE = "stale"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class JobStats:
    """What is and was of one job; as in SchedulerStats."""

    published: int
    admitted: int
    done: int
    dropped: int
    consumed: int
    stale: int
    length_bias: float


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """What is now, and what was counted since the beginning.

    Args:
        waiting: trajectories, now, that are not admitted.
        environment: now in their environment.
        queued: now waiting for a worker.
        running: now on a worker.
        recalled: now leaving one.
        admitted: so far.
        consumed: by the trainer.
        done: ended by their environment.
        dropped: for whatever reason.
        stale: of those that are done, how many were consumed when they were more than
            max_staleness versions old, if they were consumed in the order in which they ended.
        recalls: turns taken away from a worker by the scheduler.
        outgrown: of them, those that made room for a turn that became longer than expected.
        resumed: starts in the middle of a turn.
        stale_events: of workers, that changed nothing: late, doubled, or without a meaning.
        tokens_delivered: in order, each once.
        tokens_ignored: reported and not delivered.
        reprefill_tokens: of prompts that a worker had to compute though one had done so before.
        turns_by_kind: finished turns, by the kind of the worker that finished them.
        used_kv_tokens: promised of its lease, by worker, now.
        lengths_by_fate: how many trajectories said no token, 1, 2 to 3, 4 to 7 and so on. Stale
            ones are among those that are done, too.
        length_bias: mean tokens of those that were dropped or stale, over that of all others that
            are done. 1 when none was lost.
        jobs: by number.
        hazards_per_s: revocations to expect, by worker; 0 for dedicated ones.
        exposure_s: what one failure domain holds of one job, as the time for which the workers in
            all others would compute it again: the most of all, now.
        recovery_bound_s: if all borrowed workers were taken back now, each of their turns would run
            again within this. Infinite where a job has no dedicated worker.
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
