"""The interface for frameworks: turns, and their trajectories."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.checks import Cost, Count, Rate, Seed, Some, TokenId, check_fields
from rose.scheduler.events import WorkerJoined
from rose.scheduler.worker import NO_OPTIONS, Options, WorkerKind


class TrajectoryDropped(Unavailable):
    """A trajectory was dropped or given up; the scheduler goes on with the others."""


class TurnLost(TrajectoryDropped):
    """A turn's workers were lost one after another; the turn may be what ended them."""


class TurnRefused(InvalidArgument):
    """A worker refused a turn, because its request is invalid for every worker of the model."""


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """Sampling parameters of a turn.

    Args:
        max_new_tokens: largest number of tokens of the turn, > 0.
        temperature: 0 for the most likely token.
        stop_tokens: ids that end the turn, and are part of it.
        seed: seed of the turn; None for the seed of its trajectory.
        options: further parameters.
    """

    max_new_tokens: Some
    temperature: Cost = 1.0
    stop_tokens: tuple[TokenId, ...] = ()
    seed: Seed | None = None
    options: Options = NO_OPTIONS

    def __post_init__(self) -> None:
        """Check the fields; raises InvalidArgument."""
        check_fields(self)


class Capabilities(msgspec.Struct, frozen=True, array_like=True):
    """Capabilities that a worker registers with.

    Args:
        seats: turns that it runs at once, > 0.
        prefill_tokens_per_s: prompt throughput, > 0.
        decode_step_ms: time of a step without sequences, > 0.
        decode_ms_per_sequence: time that each sequence adds to a step, >= 0.
        version: version of its weights, >= 0.
        domain: failure domain; the workers of one domain fail or are revoked together.
        job: job whose trajectories it runs.
        device: device that it shares with workers of other jobs; None for its own.
    """

    seats: Some
    prefill_tokens_per_s: Rate
    decode_step_ms: Rate
    decode_ms_per_sequence: Cost = 0.0
    version: Count = 0
    domain: Count = 0
    job: Count = 0
    device: Count | None = None

    def __post_init__(self) -> None:
        """Check the fields; raises InvalidArgument."""
        check_fields(self)

    def joined(self, number: int, kind: WorkerKind) -> WorkerJoined:
        """Return the event for the core."""
        rates = self.prefill_tokens_per_s, self.decode_step_ms, self.decode_ms_per_sequence
        of = self.domain, self.seats, *rates, self.version, self.job, self.device
        return WorkerJoined(number, kind, *of)


class TurnResult(msgspec.Struct, frozen=True, array_like=True):
    """A finished turn.

    Args:
        trajectory: number of the trajectory.
        turn: index from 0.
        tokens: token ids, at most as many as requested.
        logprobs: natural log probability of each token, at the requested temperature.
        versions: version of the weights for each token.
        workers: numbers of the workers that ran a part of the turn, in order.
        is_cut: whether the turn reached its limit without a stop token.
        top_logprobs, cached_tokens, stop_reason, extras: as in `TurnOutput`; `cached_tokens` is
            that of the first worker.
    """

    trajectory: int
    turn: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    workers: tuple[int, ...]
    is_cut: bool
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    cached_tokens: int = 0
    stop_reason: int | str | None = None
    extras: Mapping[str, Any] = {}

    @property
    def resumed(self) -> int:
        """Number of times that the turn resumed after an interruption."""
        return max(0, len(self.workers) - 1)


@dataclass(frozen=True, slots=True)
class TrajectoryRecord:
    """An unfinished trajectory.

    Args:
        trajectory: number of the trajectory.
        group: number shared by the trajectories of one task.
        job: number of its job.
        seed: seed of its sampling.
        is_admitted: whether its first turn may be requested.
        turns: finished turns.
        has_turn: whether a turn is requested and unfinished.
    """

    trajectory: int
    group: int
    job: int
    seed: int
    is_admitted: bool
    turns: tuple[TurnResult, ...]
    has_turn: bool
