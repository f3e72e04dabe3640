"""The scheduler's interface to workers: turns in, tokens and grant changes out.

A worker never waits for the scheduler. Revocation is local: a worker loses a turn first, and the
scheduler gets the report afterwards, with all tokens so far.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol, TypeAlias

import msgspec

from rose.errors import InvalidArgument
from rose.scheduler.checks import Count, Share, TokenId, can_be_stored, check_fields


class WorkerKind(Enum):
    """Kind of a worker."""

    DEDICATED = "dedicated"
    BORROWED = "borrowed"


class TurnEnd(Enum):
    """Why a turn left its worker."""

    FINISHED = "its output is complete"
    INTERRUPTED = "it was taken away; what is left runs elsewhere"
    FAILED = "the worker could not run it"
    REFUSED = "its request is invalid for every worker of this model"


class Options(msgspec.Struct, frozen=True, array_like=True):
    """Sampling parameters of a turn beyond those of `Sampling`; the defaults change nothing.

    Args:
        top_p: smallest probability mass that tokens are drawn from.
        top_k: number of most likely tokens that tokens are drawn from; 0 for all.
        min_p: smallest probability of a token, as a share of the most likely token's.
        min_tokens: tokens before which no stop token may end the turn.
        ignore_eos: whether the model's own end tokens do not end the turn.
        logprobs: number of most likely tokens that are reported beside each sampled token.
        fields: further fields of vLLM's completion API, passed to the engine as they are.
        is_whole: whether a part of the turn cannot be continued elsewhere, because its sampling
            depends on more than the tokens before it. The worker then reports tokens only at the
            end, and an interrupted turn starts again.
        has_seed: whether the caller chose the seed. Otherwise an engine that has a random generator
            for each seed may use its common one, which is faster.
    """

    top_p: Share = 1.0
    top_k: Count = 0
    min_p: Share = 0.0
    min_tokens: Count = 0
    ignore_eos: bool = False
    logprobs: Count = 0
    fields: Mapping[str, Any] = {}
    is_whole: bool = False
    has_seed: bool = True

    def __post_init__(self) -> None:
        """Check the fields; raises InvalidArgument."""
        check_fields(self)
        if self.fields and not can_be_stored(self.fields):
            raise InvalidArgument("fields of Options must be plain values, as in JSON")


NO_OPTIONS = Options()


class TurnRequest(msgspec.Struct, frozen=True):
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
        seed: seed of the turn. A token depends on nothing but seed, context and position, so
            a turn that moves continues identically.
        options: further sampling parameters. `min_tokens` counts from the beginning of the turn.
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
    options: Options = NO_OPTIONS


class TurnOutput(msgspec.Struct, frozen=True, array_like=True, tag="output"):
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
        top_logprobs: for each token, pairs of id and logprob, the most likely first; empty if
            `Options.logprobs` is 0.
        cached_tokens: tokens of the prompt that the worker had in its cache.
        stop_reason: stop token or stop text that ended the turn; None for the model's own end
            tokens, and while the turn has not ended.
        extras: further fields of the engine's answer, such as `prompt_logprobs`.
    """

    worker: Count
    trajectory: Count
    turn: Count
    grant_epoch: Count
    first_token: Count
    tokens: tuple[TokenId, ...]
    logprobs: tuple[float, ...]
    versions: tuple[Count, ...]
    end: TurnEnd | None = None
    error: str | None = None
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    cached_tokens: Count = 0
    stop_reason: int | str | None = None
    extras: Mapping[str, Any] = {}


def failed_output(request: TurnRequest, worker: int, error: str) -> TurnOutput:
    """Return the output for a turn that a worker could not run."""
    where = request.trajectory, request.turn, request.grant_epoch, request.first_token
    return TurnOutput(worker, *where, (), (), (), TurnEnd.FAILED, error)


class GrantChanged(msgspec.Struct, frozen=True, array_like=True, tag="grant"):
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
    ttl_ms: float


class VersionCommitted(msgspec.Struct, frozen=True, array_like=True, tag="version"):
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
    is_match: bool
    pause_ms: float


class WorkerLost(msgspec.Struct, frozen=True, array_like=True, tag="lost"):
    """A worker is gone, with everything that it had not reported.

    Args:
        worker: number of the worker.
        reason: why it is gone.
        is_crash: whether one of its turns may have ended it. A turn whose worker crashed twice in a
            row before it had a token there is dropped.
    """

    worker: Count
    reason: str
    is_crash: bool = True


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
