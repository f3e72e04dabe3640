"""What frameworks ask for and get: turns, and the trajectories they belong to."""

import math
from dataclasses import dataclass
from typing import Final

from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.coerce import COUNT_MAX, coerce, real, whole, wholes
from rose.scheduler.events import WorkerJoined
from rose.scheduler.worker import WorkerKind

# As in csrc/scheduler/batch_check.cpp: what is worked out of rates above it is finite.
_RATE_MIN: Final = 1e-6


class TrajectoryDropped(Unavailable):
    """A trajectory was dropped or given up; the scheduler goes on with the others."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a turn is generated.

    Args:
        max_new_tokens: a turn is cut there, > 0.
        temperature: 0 for the likeliest token.
        stop_tokens: ids that end the turn; the one that does is part of it.
    """

    max_new_tokens: int
    temperature: float = 1.0
    stop_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        coerce(self, whole, "max_new_tokens")
        coerce(self, real, "temperature")
        coerce(self, wholes, "stop_tokens")
        if not 0 < self.max_new_tokens <= COUNT_MAX:
            raise InvalidArgument(
                f"max_new_tokens must be at least 1 and a count, not {self.max_new_tokens}"
            )
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InvalidArgument(f"temperature must be >= 0, not {self.temperature}")
        if not all(0 <= token <= COUNT_MAX for token in self.stop_tokens):
            raise InvalidArgument(f"stop_tokens must be token ids, not {self.stop_tokens}")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a worker can do, as it registers.

    Args:
        seats: turns it runs at once, > 0.
        prefill_tokens_per_s: how fast it computes prompts, > 0.
        decode_step_ms: of a step without sequences, > 0.
        decode_ms_per_sequence: what each sequence adds, >= 0.
        version: of its weights, >= 0.
        domain: what fails, or is taken back, together with it.
        job: whose trajectories it runs.
        device: the device that it shares with workers of other jobs; None for one of its own.
    """

    seats: int
    prefill_tokens_per_s: float
    decode_step_ms: float
    decode_ms_per_sequence: float = 0.0
    version: int = 0
    domain: int = 0
    job: int = 0
    device: int | None = None

    def __post_init__(self) -> None:
        """Refuse what the core would refuse, before anybody has heard of it."""
        coerce(self, whole, "seats", "version", "domain", "job")
        coerce(self, real, "prefill_tokens_per_s", "decode_step_ms", "decode_ms_per_sequence")
        if self.device is not None:
            coerce(self, whole, "device")
        rates = (self.prefill_tokens_per_s, self.decode_step_ms)
        from_zero = (
            *(self.decode_ms_per_sequence, self.version),
            *(self.domain, self.job, self.device or 0),
        )
        if not (
            0 < self.seats <= COUNT_MAX
            and all(_RATE_MIN <= value <= COUNT_MAX for value in rates)
            and all(0 <= value <= COUNT_MAX for value in from_zero)
        ):
            raise InvalidArgument(f"a worker cannot have {self}: a number is out of range")

    def joined(self, number: int, kind: WorkerKind) -> WorkerJoined:
        """Return what the core hears of a worker."""
        return WorkerJoined(
            worker=number,
            kind=kind,
            domain=self.domain,
            seats=self.seats,
            prefill_tokens_per_s=self.prefill_tokens_per_s,
            decode_step_ms=self.decode_step_ms,
            decode_ms_per_sequence=self.decode_ms_per_sequence,
            version=self.version,
            job=self.job,
            device=self.device,
        )


@dataclass(frozen=True, slots=True)
class TurnResult:
    """All of one turn.

    Args:
        trajectory: whose.
        turn: counts from 0.
        tokens: ids; at the most as many as asked for.
        logprobs: of each, natural, at the temperature asked for.
        versions: of the weights that gave each.
        workers: numbers of those that ran a part of it, in order.
        is_cut: whether it ended for its length, and not because it had said all.
    """

    trajectory: int
    turn: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    workers: tuple[int, ...]
    is_cut: bool

    @property
    def resumed(self) -> int:
        """How often it was taken up again after it had begun."""
        return max(0, len(self.workers) - 1)


@dataclass(frozen=True, slots=True)
class TrajectoryRecord:
    """What a scheduler knows of a trajectory that is not over.

    Args:
        trajectory: its number.
        group: those that share a task.
        job: whose it is.
        seed: of what it says.
        is_admitted: whether its first turn may be asked for.
        turns: those that are done.
        has_turn: whether another is wanted, and on its way.
    """

    trajectory: int
    group: int
    job: int
    seed: int
    is_admitted: bool
    turns: tuple[TurnResult, ...]
    has_turn: bool
