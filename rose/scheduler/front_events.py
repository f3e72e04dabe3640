"""What the asyncio front is told, as it is noted down: the same again gives the same state.

Beside these it hears what workers say, `JobJoined`, `VersionPublished` and `Consumed`, as they are.
"""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from rose.errors import InvalidArgument
from rose.scheduler.coerce import COUNT_MAX, Checked, Count, one_of, whole
from rose.scheduler.events import Consumed, JobJoined, VersionPublished
from rose.scheduler.turns import Capabilities, Sampling
from rose.scheduler.worker import WorkerEvent, WorkerKind


def _ascii(name: str, value: object) -> str:
    if not one_of(name, value, str).isascii():
        raise InvalidArgument(f"{name} must be as the W3C has it, not {value}")
    return str(value)


@dataclass(frozen=True, slots=True)
class Begun(Checked):
    """A trajectory wants to start.

    Args:
        trajectory: a number that no other ever had.
        group: those that share a task.
        job: whose it is.
        seed: of what it says; a turn that moves says the same.
        traceparent: of the W3C, the span that it is part of; empty if it begins a trace.
    """

    trajectory: Count
    group: Count
    job: Count
    seed: Annotated[int, whole(-COUNT_MAX, COUNT_MAX)]
    traceparent: Annotated[str, _ascii] = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """The next turn of a trajectory is wanted.

    Args:
        trajectory: whose.
        turn: which.
        kept: how many tokens of what it has read and said so far the prompt begins with.
        tail: the tokens of the prompt behind them.
        sampling: how it is generated.
    """

    trajectory: int
    turn: int
    kept: int
    tail: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Ended(Checked):
    """A trajectory is over; the trainer will have it, or it is given up, wherever it is."""

    trajectory: Count
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class Registered(Checked):
    """A worker is there, for the first time or again. It runs nothing."""

    worker: Count
    kind: WorkerKind
    capabilities: Capabilities


Entry: TypeAlias = (
    WorkerEvent | VersionPublished | Consumed | JobJoined | Begun | Asked | Ended | Registered
)


@dataclass(frozen=True, slots=True)
class Step:
    """What was heard before one step of the core, and when that was, on the clock of the core."""

    now_ns: int
    entries: tuple[Entry, ...]
