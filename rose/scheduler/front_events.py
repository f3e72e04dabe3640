"""What the asyncio front is told, as it is noted down: the same again gives the same state.

Beside these it hears what workers say, `JobJoined`, `VersionPublished` and `Consumed`, as they are.
"""

from dataclasses import dataclass
from typing import TypeAlias

from rose.errors import InvalidArgument
from rose.scheduler.coerce import COUNT_MAX, coerce, count, one_of, whole, wholes
from rose.scheduler.events import Consumed, JobJoined, VersionPublished
from rose.scheduler.turns import Capabilities, Sampling
from rose.scheduler.worker import WorkerEvent, WorkerKind


@dataclass(frozen=True, slots=True)
class Begun:
    """A trajectory wants to start.

    Args:
        trajectory: a number that no other ever had.
        group: those that share a task.
        job: whose it is.
        seed: of what it says; a turn that moves says the same.
        traceparent: of the W3C, the span that it is part of; empty if it begins a trace.
    """

    trajectory: int
    group: int
    job: int
    seed: int
    traceparent: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no number or no text."""
        coerce(self, count, "trajectory", "group", "job")
        coerce(self, whole, "seed")
        if not -COUNT_MAX <= self.seed <= COUNT_MAX:
            raise InvalidArgument(f"seed must fit {COUNT_MAX}, not be {self.seed}")
        if not one_of("traceparent", self.traceparent, str).isascii():
            raise InvalidArgument(f"traceparent must be as the W3C has it, not {self.traceparent}")


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

    def __post_init__(self) -> None:
        """Refuse what is no number."""
        coerce(self, whole, "trajectory", "turn", "kept")
        coerce(self, wholes, "tail")
        one_of("sampling", self.sampling, Sampling)


@dataclass(frozen=True, slots=True)
class Ended:
    """A trajectory is over.

    Args:
        trajectory: which.
        is_wanted: the trainer will have it. If not it is given up, wherever it is.
    """

    trajectory: int
    is_wanted: bool

    def __post_init__(self) -> None:
        """Refuse what is no number."""
        coerce(self, whole, "trajectory")


@dataclass(frozen=True, slots=True)
class Registered:
    """A worker is there, for the first time or again. It runs nothing."""

    worker: int
    kind: WorkerKind
    capabilities: Capabilities

    def __post_init__(self) -> None:
        """Refuse what is no number or no kind."""
        coerce(self, count, "worker")
        one_of("kind", self.kind, WorkerKind)
        one_of("capabilities", self.capabilities, Capabilities)


Entry: TypeAlias = (
    WorkerEvent | VersionPublished | Consumed | JobJoined | Begun | Asked | Ended | Registered
)


@dataclass(frozen=True, slots=True)
class Step:
    """What was heard before one step of the core, and when that was.

    Args:
        now_ns: on the clock of the core.
        entries: in their order.
    """

    now_ns: int
    entries: tuple[Entry, ...]
