"""Input of the asyncio driver, as written to the journal. Replaying the input restores the state.

The driver also accepts the events of workers, unchanged.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from rose.scheduler.checks import COUNT_MAX, Cost, Count, Rate, Seed
from rose.scheduler.turns import Capabilities, Sampling
from rose.scheduler.versions import ANY, VersionRange
from rose.scheduler.worker import WorkerEvent, WorkerKind


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """A trajectory asks to start.

    Args:
        trajectory: number that was never used.
        group: number shared by the trajectories of one task.
        job: number of its job.
        seed: seed of its sampling, so that a turn that moves to another worker continues
            identically.
    """

    trajectory: Count
    group: Count
    job: Count
    seed: Seed


class Asked(msgspec.Struct, frozen=True, array_like=True, tag="asked"):
    """The next turn of a trajectory is requested.

    Args:
        trajectory: number of the trajectory.
        turn: index of the turn.
        kept: number of leading tokens of the trajectory's context that the prompt repeats.
        tail: token ids of the prompt after the repeated ones, with 32 bits each.
        sampling: sampling of the turn.
        versions: versions of weights that may generate its tokens.
    """

    trajectory: int
    turn: int
    kept: int
    tail: bytes
    sampling: Sampling
    versions: VersionRange = ANY


class Cut(msgspec.Struct, frozen=True, array_like=True, tag="cut"):
    """A turn is complete with its first `tokens` tokens."""

    trajectory: Count
    turn: Count
    tokens: Count


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """A trajectory ended.

    Args:
        trajectory: number of the trajectory.
        is_wanted: whether it is finished, so that the trainer gets it. False: it is given up, which
            is allowed in any phase.
    """

    trajectory: Count
    is_wanted: bool


class Registered(msgspec.Struct, frozen=True, array_like=True, tag="registered"):
    """A worker joined, for the first time or again. It runs no turn yet."""

    worker: Count
    kind: WorkerKind
    capabilities: Capabilities


class RatesMeasured(msgspec.Struct, frozen=True, array_like=True, tag="measured"):
    """The rates of a worker were measured again; the fields are those of `Capabilities`."""

    worker: Count
    prefill_tokens_per_s: Rate
    decode_step_ms: Rate
    decode_ms_per_sequence: Cost


class Drained(msgspec.Struct, frozen=True, array_like=True, tag="drained"):
    """A worker gets no more turns, and its turns are recalled."""

    worker: Count


class JobAdded(msgspec.Struct, frozen=True, array_like=True, tag="job"):
    """A job joined or has new values.

    Args:
        job: number of the job.
        batch_trajectories: trajectories that its trainer uses per version.
        max_staleness: most versions between the start of a trajectory and its use.
        weight: relative share of devices that several jobs share.
    """

    job: Count
    batch_trajectories: Annotated[int, Meta(ge=1, le=COUNT_MAX >> 1)]
    max_staleness: Annotated[int, Meta(ge=0, le=1 << 20)]
    weight: Annotated[float, Meta(ge=1e-6, le=1e6)]


class TrainerPublished(msgspec.Struct, frozen=True, array_like=True, tag="published"):
    """A job's trainer has published a version; a version that is not higher is ignored."""

    version: Count
    job: Count = 0


class Used(msgspec.Struct, frozen=True, array_like=True, tag="used"):
    """A job's trainer has used or discarded `trajectories` more finished trajectories."""

    trajectories: Count
    job: Count = 0


class PauseChanged(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """No turn starts while the scheduler is paused.

    Args:
        is_paused: whether a pause begins, or ends.
        is_recalling: whether running turns are recalled at its beginning.
    """

    is_paused: bool
    is_recalling: bool = False


Entry: TypeAlias = (
    WorkerEvent
    | Begun
    | Asked
    | Cut
    | Ended
    | Registered
    | RatesMeasured
    | Drained
    | JobAdded
    | TrainerPublished
    | Used
    | PauseChanged
)


class DriverStep(msgspec.Struct, frozen=True, array_like=True):
    """The entries of one step of the core, and the step's time on the core's clock."""

    now_ns: int
    entries: tuple[Entry, ...]
