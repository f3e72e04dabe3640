"""The scheduler's interface to workers: turns in, tokens and grant changes out.

A worker never waits for the scheduler. Revocation is local: a worker loses a turn first, and the
scheduler gets the report afterwards, with all tokens so far.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from rose.scheduler.coerce import Count, Counts, Real, Reals, Text, Truth


class WorkerKind(Enum):
    """Kind of a worker."""

    DEDICATED = "dedicated"
    BORROWED = "borrowed"


class TurnEnd(Enum):
    """Why a turn left its worker."""

    FINISHED = "its output is complete"
    INTERRUPTED = "it was taken away; what is left runs elsewhere"
    FAILED = "the worker could not run it"


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn, or the rest of one, for a worker.

    Args:
        trajectory: number of the trajectory.
        turn: index from 0 within the trajectory.
        grant_epoch: epoch of the worker's capacity grant; every output repeats it.
        prompt: token ids of the whole context, followed by this turn's tokens from other workers.
        first_token: number of tokens of this turn in `prompt`.
        max_new_tokens: tokens that may still be generated, > 0.
        stop_tokens: ids that end the turn, and are part of the output.
        temperature: 0 for the most likely token.
        seed: seed of the trajectory. A token depends on nothing but seed, context and position, so
            a turn that moves continues identically.
    """

    trajectory: int
    turn: int
    grant_epoch: int
    prompt: tuple[int, ...]
    first_token: int
    max_new_tokens: int
    stop_tokens: tuple[int, ...]
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class TurnOutput:
    """The next tokens of a turn, and its end.

    Args:
        worker: number of the worker.
        trajectory: number of the trajectory.
        turn: index of the turn.
        grant_epoch: grant epoch of the request.
        first_token: index of `tokens[0]` within the turn.
        tokens: token ids; empty only together with an `end`.
        logprobs: natural log probability of each token, at the request's temperature.
        versions: version of the weights for each token.
        end: reason of the end; None while more may follow.
        error: why the turn failed; None if it did not.
    """

    worker: Count
    trajectory: Count
    turn: Count
    grant_epoch: Count
    first_token: Count
    tokens: Counts
    logprobs: Reals
    versions: Counts
    end: TurnEnd | None = None
    error: Text | None = None


def failed_output(request: TurnRequest, worker: int, error: str) -> TurnOutput:
    """Return the output for a turn that a worker could not run."""
    where = request.trajectory, request.turn, request.grant_epoch, request.first_token
    return TurnOutput(worker, *where, (), (), (), TurnEnd.FAILED, error)


@dataclass(frozen=True, slots=True)
class GrantChanged:
    """A worker's capacity grant was made, resized, renewed or revoked.

    Args:
        worker: number of the worker.
        grant_epoch: number of the grant. A higher number is a new grant; a lower one is ignored.
        kv_tokens: tokens of context that the worker can hold now; 0 revokes the grant.
        ttl_ms: life of the grant from the time of the report; 0 for unlimited.
    """

    worker: Count
    grant_epoch: Count
    kv_tokens: Count
    ttl_ms: Real


@dataclass(frozen=True, slots=True)
class VersionCommitted:
    """A worker committed new weights, or rolled back.

    Args:
        worker: number of the worker.
        version: version of the weights that the worker has now.
        is_match: whether the digest equals the trainer's. If not, `version` is the old one, or the
            worker is quarantined and revokes its grant.
        pause_ms: time for which no step could run.
    """

    worker: Count
    version: Count
    is_match: Truth
    pause_ms: Real


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone, with everything that it had not reported."""

    worker: Count
    reason: Text


WorkerEvent: TypeAlias = TurnOutput | GrantChanged | VersionCommitted | WorkerLost


class Worker(Protocol):
    """Runs turns. It sends events to its callback from a thread of its own."""

    @property
    def number(self) -> int:
        """Number of the worker in events and actions."""
        ...

    @property
    def kind(self) -> WorkerKind:
        """Dedicated or borrowed."""
        ...

    def start_turn(self, request: TurnRequest) -> None:
        """Queue a turn; if it cannot run, a failed output follows.

        Raises:
            RoseError: the turn failed. After any other exception the worker counts as lost.
        """
        ...

    def stop_turn(self, trajectory: int) -> None:
        """Recall a trajectory's turn: its last output ends it as INTERRUPTED.

        A trajectory without a turn on this worker is ignored.

        After any exception the worker counts as lost.
        """
        ...
