"""Input of the asyncio driver, as written to the journal. Replaying the input restores the state.

The driver also accepts worker events, `JobJoined`, `VersionPublished` and `Consumed`, unchanged.
"""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from rose.scheduler.coerce import COUNT_MAX, Checked, Count, whole
from rose.scheduler.events import Consumed, JobJoined, VersionPublished
from rose.scheduler.turns import Capabilities, Sampling
from rose.scheduler.worker import WorkerEvent, WorkerKind


@dataclass(frozen=True, slots=True)
class Begun(Checked):
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
    seed: Annotated[int, whole(-COUNT_MAX, COUNT_MAX)]


@dataclass(frozen=True, slots=True)
class Asked:
    """The next turn of a trajectory is requested.

    Args:
        trajectory: number of the trajectory.
        turn: index of the turn.
        kept: number of leading tokens of the trajectory's context that the prompt repeats.
        tail: token ids of the prompt after the repeated ones.
        sampling: sampling of the turn.
    """

    trajectory: int
    turn: int
    kept: int
    tail: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Ended(Checked):
    """A trajectory ended.

    Args:
        trajectory: number of the trajectory.
        is_wanted: whether it is finished, so that the trainer gets it. False: it is given up, which
            is allowed in any phase.
    """

    trajectory: Count
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class Registered(Checked):
    """A worker joined, for the first time or again. It runs no turn yet."""

    worker: Count
    kind: WorkerKind
    capabilities: Capabilities


Entry: TypeAlias = (
    WorkerEvent | VersionPublished | Consumed | JobJoined | Begun | Asked | Ended | Registered
)


@dataclass(frozen=True, slots=True)
class DriverStep:
    """The entries of one step of the core, and the step's time on the core's clock."""

    now_ns: int
    entries: tuple[Entry, ...]
