"""A turn on an engine: its request, its output, and the part of the output that was reported."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rose.engines.transformers.facts import ModelFacts
from rose.engines.transformers.outputs import Output
from rose.engines.transformers.sampling import Sampling
from rose.errors import InvalidArgument
from rose.scheduler.worker import TurnEnd, TurnOutput, TurnRequest

# Stop texts are found by the service, which has a tokenizer, and then recalls the turn.
_FOUND_ELSEWHERE: Final = frozenset({"stop"})


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

    def report(
        self, end: TurnEnd | None = None, error: str | None = None, *, ends: Sequence[int] = ()
    ) -> TurnOutput:
        """Return the unreported tokens, and count them as reported.

        Args:
            end: why the turn ended; None while it runs.
            error: why the turn failed.
            ends: end tokens of the model, which are no reason to stop that a client has given.
        """
        first, request, output = self.sent, self.request, self.output
        self.is_over = end is not None
        where = request.trajectory, request.turn, request.grant_epoch, request.first_token + first
        if output is None:
            return TurnOutput(self.worker, *where, (), (), (), end, error)
        tokens = output.generated_tokens
        self.sent = len(tokens)
        last = tokens[-1] if tokens and end is TurnEnd.FINISHED else None
        return TurnOutput(
            self.worker,
            *where,
            tokens=tuple(tokens[first:]),
            logprobs=tuple(output.logprobs[first:]),
            versions=tuple(output.versions[first:]),
            end=end,
            error=error,
            top_logprobs=tuple(output.top_logprobs[first : self.sent]),
            cached_tokens=output.cached_tokens,
            stop_reason=last if last in request.stop_tokens and last not in ends else None,
        )


def checked_sampling(request: TurnRequest, facts: ModelFacts) -> Sampling:
    """Return the sampling parameters of a turn.

    Args:
        request: request of the turn.
        facts: facts of the model.

    Raises:
        InvalidArgument: the turn is invalid for every worker of this model; the message says why.
    """
    if not request.prompt or request.max_new_tokens < 1:
        raise InvalidArgument(
            f"a turn needs a prompt and max_new_tokens of at least 1, got {len(request.prompt)} "
            f"tokens and {request.max_new_tokens}"
        )
    facts.check(request.prompt, len(request.prompt) + request.max_new_tokens)
    options = request.options
    unknown = options.fields.keys() - _FOUND_ELSEWHERE
    if unknown:
        raise InvalidArgument(f"this engine does not support {', '.join(sorted(unknown))}")
    stops = {*request.stop_tokens, *facts.eos_tokens}
    withheld = tuple(sorted(one for one in stops if one < facts.vocabulary))
    if options.min_tokens and len(withheld) == facts.vocabulary:
        raise InvalidArgument("min_tokens needs a token that does not end the turn")
    return Sampling(
        seed=request.seed,
        temperature=request.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        logprobs=options.logprobs,
        withheld=withheld,
        withheld_until=len(request.prompt) - request.first_token + options.min_tokens,
    )
