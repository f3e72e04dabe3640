"""A turn on an engine: its request, its output, and the part of the output that was reported."""

from dataclasses import dataclass, field

from rose.engines.transformers.outputs import Output
from rose.engines.transformers.sampling import Sampling
from rose.errors import InvalidArgument
from rose.scheduler.worker import TurnEnd, TurnOutput, TurnRequest


@dataclass(slots=True, eq=False)
class Turn:
    """One turn that a worker runs. For the loop thread.

    Args:
        worker: number of the worker.
        request: request of the turn.
        request_id: id of the engine's request.
        output: newest output of the engine, with all tokens so far.
        sent: number of tokens reported so far.
        is_over: whether the turn's end was reported; later output is dropped.
    """

    worker: int
    request: TurnRequest
    request_id: str
    output: Output | None = None
    sent: int = 0
    is_over: bool = field(default=False)

    @property
    def has_news(self) -> bool:
        """True if there are unreported tokens."""
        return self.output is not None and len(self.output.generated_tokens) > self.sent

    def report(self, end: TurnEnd | None = None, error: str | None = None) -> TurnOutput:
        """Return the unreported tokens, and count them as reported."""
        first, request, output = self.sent, self.request, self.output
        self.is_over = end is not None
        if output is not None:
            self.sent = len(output.generated_tokens)
        return TurnOutput(
            worker=self.worker,
            trajectory=request.trajectory,
            turn=request.turn,
            grant_epoch=request.grant_epoch,
            first_token=request.first_token + first,
            tokens=() if output is None else tuple(output.generated_tokens[first:]),
            logprobs=() if output is None else tuple(output.logprobs[first:]),
            versions=() if output is None else tuple(output.versions[first:]),
            end=end,
            error=error,
        )


def checked_sampling(request: TurnRequest, *, tokens_max: int) -> Sampling:
    """Return the sampling parameters of a turn.

    Args:
        request: request of the turn.
        tokens_max: largest context that the worker can hold, in tokens.

    Raises:
        InvalidArgument: the turn is invalid, or too long for the worker; the message says why.
    """
    if not request.prompt or request.max_new_tokens < 1:
        raise InvalidArgument(
            f"a turn needs a prompt and max_new_tokens of at least 1, got {len(request.prompt)} "
            f"tokens and {request.max_new_tokens}"
        )
    tokens = len(request.prompt) + request.max_new_tokens
    if tokens > tokens_max:
        raise InvalidArgument(
            f"a turn of {tokens} tokens exceeds the {tokens_max} tokens that the worker can hold"
        )
    return Sampling(seed=request.seed, temperature=request.temperature)
