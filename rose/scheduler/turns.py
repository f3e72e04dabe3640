"""What frameworks ask for and get: turns, and the trajectories they belong to."""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from rose.errors import Unavailable
from rose.scheduler.coerce import COUNT_MAX, Checked, Cost, Count, Counts, Some, real
from rose.scheduler.events import WorkerJoined
from rose.scheduler.worker import WorkerKind

# As in csrc/scheduler/batch_check.cpp: what is worked out of rates above it is finite.
Rate: TypeAlias = Annotated[float, real(1e-6, COUNT_MAX)]


class TrajectoryDropped(Unavailable):
    """A trajectory was dropped or given up; the scheduler goes on with the others."""


@dataclass(frozen=True, slots=True)
class Sampling(Checked):
    """How a turn is generated.

    Args:
        max_new_tokens: a turn is cut there, > 0.
        temperature: 0 for the likeliest token.
        stop_tokens: ids that end the turn; the one that does is part of it.
    """

    max_new_tokens: Some
    temperature: Cost = 1.0
    stop_tokens: Counts = ()


@dataclass(frozen=True, slots=True)
class Capabilities(Checked):
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

    seats: Some
    prefill_tokens_per_s: Rate
    decode_step_ms: Rate
    decode_ms_per_sequence: Cost = 0.0
    version: Count = 0
    domain: Count = 0
    job: Count = 0
    device: Count | None = None

    def joined(self, number: int, kind: WorkerKind) -> WorkerJoined:
        """Return what the core hears of a worker."""
        rates = self.prefill_tokens_per_s, self.decode_step_ms, self.decode_ms_per_sequence
        of = self.domain, self.seats, *rates, self.version, self.job, self.device
        return WorkerJoined(number, kind, *of)


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
