"""A turn on an engine: what was asked for, what it has said, and what was reported of it."""

from dataclasses import dataclass, field

from rose.engines.transformers.outputs import Output
from rose.engines.transformers.sampling import Sampling
from rose.errors import InvalidArgument
from rose.scheduler.worker import TurnEnd, TurnOutput, TurnRequest


@dataclass(slots=True, eq=False)
class Turn:
    """One turn that a worker runs. For the loop thread.

    Args:
        worker: its number.
        request: what was asked for.
        request_id: of the engine's request.
        output: the newest of the engine; it holds all tokens so far.
        sent: how many of them were reported.
        is_over: whether its end was reported; what the engine says after it is for nobody.
    """

    worker: int
    request: TurnRequest
    request_id: str
    output: Output | None = None
    sent: int = 0
    is_over: bool = field(default=False)

    @property
    def has_news(self) -> bool:
        """Whether there are tokens that were not reported."""
        return self.output is not None and len(self.output.generated_tokens) > self.sent

    def report(self, end: TurnEnd | None = None, error: str | None = None) -> TurnOutput:
        """Return what was not reported yet, and count it as reported."""
        first, request, output = self.sent, self.request, self.output
        self.is_over = end is not None
        if output is not None:
            self.sent = len(output.generated_tokens)
        return TurnOutput(
            worker=self.worker,
            trajectory=request.trajectory,
            turn=request.turn,
            lease_epoch=request.lease_epoch,
            first_token=request.first_token + first,
            tokens=() if output is None else tuple(output.generated_tokens[first:]),
            logprobs=() if output is None else tuple(output.logprobs[first:]),
            versions=() if output is None else tuple(output.versions[first:]),
            end=end,
            error=error,
        )


def checked_sampling(request: TurnRequest, *, tokens_max: int) -> Sampling:
    """Return how the tokens of a turn are chosen.

    Args:
        request: the turn.
        tokens_max: of context that its worker could ever hold.

    Raises:
        InvalidArgument: no worker, or not this one, can run the turn; the sentence says why.
    """
    if not request.prompt or request.max_new_tokens < 1:
        raise InvalidArgument(
            f"a turn of {len(request.prompt)} tokens that may say {request.max_new_tokens}: "
            "both must be 1 or more"
        )
    tokens = len(request.prompt) + request.max_new_tokens
    if tokens > tokens_max:
        raise InvalidArgument(f"a turn of {tokens} tokens does not fit the {tokens_max} there are")
    return Sampling(seed=request.seed, temperature=request.temperature)
