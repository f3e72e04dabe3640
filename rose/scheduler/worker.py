"""What a worker is to the scheduler: turns go in, tokens and news of its lease come out.

A worker never waits for the scheduler. Whoever takes a turn away from it does so first and reports
after, with every token there was: revocation is local.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from rose.scheduler.coerce import Count, Counts, Real, Reals, Text, Truth


class WorkerKind(Enum):
    """What the scheduler may expect of a worker."""

    DEDICATED = "dedicated"
    BORROWED = "borrowed"


class TurnEnd(Enum):
    """Why a turn left its worker."""

    FINISHED = "it said all it had to say"
    INTERRUPTED = "it was taken away; what is left runs elsewhere"
    FAILED = "the worker could not run it"


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn, or the rest of one, for a worker.

    Args:
        trajectory: whose turn it is.
        turn: counts from 0 within the trajectory.
        lease_epoch: of the worker's lease this runs under; every output repeats it.
        prompt: token ids: the whole context, and what of this turn was generated elsewhere before.
        first_token: how many tokens of this turn `prompt` holds already.
        max_new_tokens: what may still be generated, > 0.
        stop_tokens: ids that end the turn; the one that does is part of the output.
        temperature: 0 for the likeliest token.
        seed: of the trajectory. The token at one position of one context depends on nothing else,
            so a turn that moves says the same.
    """

    trajectory: int
    turn: int
    lease_epoch: int
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
        worker: who generated them.
        trajectory: whose turn.
        turn: of the trajectory.
        lease_epoch: of the request.
        first_token: place of `tokens[0]` within the turn.
        tokens: ids; empty only together with an `end`.
        logprobs: of each token, natural, at the request's temperature.
        versions: of the weights that gave each token.
        end: None while more may follow.
        error: why it failed.
    """

    worker: Count
    trajectory: Count
    turn: Count
    lease_epoch: Count
    first_token: Count
    tokens: Counts
    logprobs: Reals
    versions: Counts
    end: TurnEnd | None = None
    error: Text | None = None


def failed_output(request: TurnRequest, worker: int, error: str) -> TurnOutput:
    """Return what a worker says of a turn that it could not run."""
    where = request.trajectory, request.turn, request.lease_epoch, request.first_token
    return TurnOutput(worker, *where, (), (), (), TurnEnd.FAILED, error)


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """A worker's lease was granted, resized, renewed or revoked.

    Args:
        worker: whose.
        lease_epoch: a higher one than before is a new grant; a lower one is stale and says nothing.
        kv_tokens: how many tokens of context it can hold now; 0 revokes the lease.
        ttl_ms: it is over this long after the report was made; 0 means it does not run out.
    """

    worker: Count
    lease_epoch: Count
    kv_tokens: Count
    ttl_ms: Real


@dataclass(frozen=True, slots=True)
class VersionCommitted:
    """A worker changed its weights, or tried to and went back.

    Args:
        worker: whose weights.
        version: what it runs now.
        is_match: whether the digest was the trainer's. If not, `version` is the one before, or the
            worker is quarantined and revokes its lease.
        pause_ms: how long no step could run for it.
    """

    worker: Count
    version: Count
    is_match: Truth
    pause_ms: Real


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone, and with it what it had not reported."""

    worker: Count
    reason: Text


WorkerEvent: TypeAlias = TurnOutput | LeaseChanged | VersionCommitted | WorkerLost


class Worker(Protocol):
    """Runs turns. Its events go to a callback it was made with, from a thread of its own."""

    @property
    def number(self) -> int:
        """What events and actions call it."""
        ...

    @property
    def kind(self) -> WorkerKind:
        """Dedicated or borrowed."""
        ...

    def start_turn(self, request: TurnRequest) -> None:
        """Queue a turn; one that cannot run comes back as an output that failed.

        Raises:
            RoseError: the turn failed; anything else loses the worker.
        """
        ...

    def stop_turn(self, trajectory: int) -> None:
        """Take a turn back: its last output is INTERRUPTED. Unknown ones are ignored.

        Whatever it raises loses the worker.
        """
        ...
