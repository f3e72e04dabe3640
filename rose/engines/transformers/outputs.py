"""A request's output with the version of each token, delivered to its owner."""

from collections.abc import Callable
from dataclasses import dataclass, field

from transformers.generation.continuous_batching.continuous_api import OutputRouter
from transformers.generation.continuous_batching.requests import (
    GenerationOutput,
    RequestState,
    RequestStatus,
)

from rose.engines.transformers.sampling import Sampling


@dataclass
class Output(GenerationOutput):  # type: ignore[misc]  # transformers ships no types
    """The output of a request so far.

    Args:
        versions: version of the weights for each generated token.
        failure: exception that ended the request; None if it runs, is complete, or was ended on
            purpose (`CallbackRouter.take_away`).
    """

    versions: list[int] = field(default_factory=list)
    failure: Exception | None = None


OnOutput = Callable[[Output], None]


@dataclass(slots=True)
class LiveRequest:
    """Data of a request beside transformers' own state; kept across preemption.

    Args:
        on_output: callback of its owner, called in the loop thread.
        sampling: sampling parameters.
        versions: version of the weights for each of its tokens.
    """

    on_output: OnOutput
    sampling: Sampling
    versions: list[int] = field(default_factory=list)


class CallbackRouter(OutputRouter):  # type: ignore[misc]  # transformers ships no types
    """Stamps outputs with versions and delivers them in the loop thread."""

    def __init__(self, *, version: int) -> None:
        """Start without requests; `version` is the version of the weights."""
        super().__init__()
        self.version = version
        self.live: dict[str, LiveRequest] = {}

    def sampling_of(self, request_id: str) -> Sampling:
        """Return the sampling parameters of a request."""
        live = self.live.get(request_id)
        return Sampling() if live is None else live.sampling

    def deliver(self, output: GenerationOutput, failure: Exception | None = None) -> None:
        """Call the owner of the request; forget it after its last output."""
        live = self.live.get(output.request_id)
        if live is None:
            return
        if output.is_finished():
            self.live.pop(output.request_id, None)
        # A step delivers its tokens before the next may begin, so tokens without a version are of
        # the current one.
        fresh = len(output.generated_tokens) - len(live.versions)
        live.versions.extend([self.version] * fresh)
        live.on_output(Output(**vars(output), versions=live.versions[:], failure=failure))

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        """Deliver outputs one by one."""
        for output in outputs:
            self.deliver(output)

    def fail_and_deliver(self, state: RequestState, error: Exception) -> None:
        """End a failed request; its owner gets the output so far, and the reason."""
        state.status = RequestStatus.FAILED
        state.error = str(error)
        self.deliver(state.to_generation_output(), error)

    def take_away(self, state: RequestState, reason: str) -> None:
        """End a request on purpose; it did not fail."""
        state.status = RequestStatus.FAILED
        state.error = reason
        self.deliver(state.to_generation_output())
