"""What a request says, with the version of the weights behind each token, to the one who asked."""

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
    """What a request has said so far.

    Args:
        versions: of the weights that gave each generated token.
        failure: why the request ended early; None while it runs, and when it was taken away.
    """

    versions: list[int] = field(default_factory=list)
    failure: Exception | None = None


OnOutput = Callable[[Output], None]


@dataclass(slots=True)
class LiveRequest:
    """What an engine keeps of a request beside transformers' own state; preemption keeps it.

    Args:
        on_output: its owner's, called in the loop thread.
        sampling: how its tokens are chosen.
        versions: of the weights that gave each of its tokens.
    """

    on_output: OnOutput
    sampling: Sampling
    versions: list[int] = field(default_factory=list)


class CallbackRouter(OutputRouter):  # type: ignore[misc]  # transformers ships no types
    """Stamps each output with versions and hands it to its request's owner, in the loop thread."""

    def __init__(self, *, version: int) -> None:
        """Start without requests; `version` is that of the weights."""
        super().__init__()
        self.version = version
        self.live: dict[str, LiveRequest] = {}

    def sampling_of(self, request_id: str) -> Sampling:
        """Return how the tokens of a request are chosen."""
        live = self.live.get(request_id)
        return Sampling() if live is None else live.sampling

    def deliver(self, output: GenerationOutput, failure: Exception | None = None) -> None:
        """Call the owner of the request; forget it when this was its last output."""
        live = self.live.get(output.request_id)
        if live is None:
            return
        if output.is_finished():
            self.live.pop(output.request_id, None)
        # A step delivers its tokens before the next may begin, so what is not stamped is of now.
        fresh = len(output.generated_tokens) - len(live.versions)
        live.versions.extend([self.version] * fresh)
        live.on_output(Output(**vars(output), versions=live.versions[:], failure=failure))

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        """Deliver one by one."""
        for output in outputs:
            self.deliver(output)

    def fail_and_deliver(self, state: RequestState, error: Exception) -> None:
        """End a request that cannot go on; its owner gets what there is, and the reason."""
        state.status = RequestStatus.FAILED
        state.error = str(error)
        self.deliver(state.to_generation_output(), error)

    def take_away(self, state: RequestState, reason: str) -> None:
        """End a request on purpose; nothing of it was wrong."""
        state.status = RequestStatus.FAILED
        state.error = reason
        self.deliver(state.to_generation_output())
