"""Events and actions of the scheduler's core.

Three more events come unchanged from `rose.scheduler.worker`: GrantChanged, WorkerLost and
VersionCommitted. A TurnOutput becomes a TurnProgress; if it has an `end`, a TurnEnded follows in
the same step. The core only counts tokens; its driver keeps them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, TypeAlias

from rose.scheduler.coerce import COUNT_MAX, Count, real, whole
from rose.scheduler.worker import GrantChanged, TurnEnd, VersionCommitted, WorkerKind, WorkerLost

# ---- events of the driver. They must not contradict each other.


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker joined; it may run turns once it reports a capacity grant.

    A lost worker may join again under its number, but its grant epochs must continue from the old
    ones, which never become valid again. The fields are those of `Capabilities`, plus
    `decode_ms_per_context_token`: step time that each context token of the worker's turns adds.
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
    """A job's trainer has published a version; a version that is not higher is ignored."""

    version: Count
    job: Count = 0


@dataclass(frozen=True, slots=True)
class TrajectoryCreated:
    """A trajectory asks to start; the action Admit allows it. Its number was never used before."""

    trajectory: int
    group: int
    job: int = 0


@dataclass(frozen=True, slots=True)
class TurnReady:
    """The next turn of an admitted trajectory may run: the first, or one after a tool call."""

    trajectory: int
    turn: int
    context_tokens: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class TrajectoryEnded:
    """A trajectory's environment has ended.

    During a turn, this event gives up the trajectory, and Drop follows.
    """

    trajectory: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """A job's trainer has used or discarded `trajectories` more ended trajectories."""

    trajectories: Count
    job: Count = 0


@dataclass(frozen=True, slots=True)
class JobJoined:
    """A job joined or has new values.

    A job without this event has the values of the settings, and weight 1.

    Args:
        job: number of the job.
        batch_trajectories: trajectories that its trainer uses per version.
        max_staleness: most versions between the start of a trajectory and its use.
        weight: relative share of devices that several jobs share.
    """

    job: Count
    batch_trajectories: Annotated[int, whole(1, COUNT_MAX >> 1)]
    max_staleness: Annotated[int, whole(0, 1 << 20)]
    weight: Annotated[float, real(1e-6, 1e6)]


# ---- events of workers. They may be late, repeated, or obsolete.


@dataclass(frozen=True, slots=True)
class TurnProgress:
    """Tokens of a `TurnOutput`: their number, and the oldest version among them."""

    trajectory: int
    turn: int
    worker: int
    grant_epoch: int
    first_token: int
    tokens: int
    version_min: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A turn left its worker.

    `tokens` is the turn's length at that time, including tokens from other workers. It shows
    whether this event overtook the last tokens. None if events cannot overtake each other.
    """

    trajectory: int
    turn: int
    worker: int
    grant_epoch: int
    end: TurnEnd
    tokens: int | None = None


Event: TypeAlias = (
    WorkerJoined
    | GrantChanged
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

# ---- actions, to be carried out in order.


class DropReason(Enum):
    """Why a trajectory was dropped."""

    FAILED = "one of its turns failed on every attempt"
    GIVEN_UP = "it was given up before its environment finished"


@dataclass(frozen=True, slots=True)
class Admit:
    """A trajectory may start: its first TurnReady is accepted."""

    trajectory: int


@dataclass(frozen=True, slots=True)
class Start:
    """Run a turn, or the rest of a turn whose first `first_token` tokens are in the prompt already.

    If the turn's last token is among them (a stop token was delivered, but the report of the end
    was lost), the driver runs nothing, and answers with TurnEnded(FINISHED).
    """

    trajectory: int
    turn: int
    worker: int
    grant_epoch: int
    first_token: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Recall a turn from a worker; a worker that does not have the turn ignores this."""

    trajectory: int
    worker: int
    grant_epoch: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Append tokens of a TurnProgress to a turn.

    Args:
        trajectory: number of the trajectory.
        turn: index of the turn.
        event: index of the TurnProgress among the events of this step.
        skip: number of leading tokens of the event to skip, because they were delivered before.
        tokens: number of tokens to take after the skipped ones, > 0. Tokens of the event after
            these exceed the turn's limit.
    """

    trajectory: int
    turn: int
    event: int
    skip: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TurnDone:
    """All tokens of a turn were delivered."""

    trajectory: int
    turn: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a trajectory; no event may name it any more."""

    trajectory: int
    reason: DropReason


Action: TypeAlias = Admit | Start | Stop | Deliver | TurnDone | Drop


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
