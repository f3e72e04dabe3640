"""The serving engine: continuous batching with one prompt's chunk beside the decoding sequences."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rose.sim.device import DeviceModel, StepWork
from rose.sim.request import Request


@dataclass(slots=True)
class _Sequence:
    """A request in the engine."""

    number: int
    context_tokens: int  # in its KV cache: prefilled prompt and tokens that were fed back
    tokens_left: int


@dataclass(frozen=True, slots=True)
class Emitted:
    """What a step gave out.

    Args:
        tokens: requests that got a token.
        finished: those of them whose last it was.
    """

    tokens: list[int]
    finished: list[int]


class ServingEngine:
    """Which step comes next, and what it gives. It knows no time.

    Prompts are served first come, first served, in chunks that leave each decoding sequence its
    token. A prompt starts while fewer than `batch_max` sequences decode.
    """

    def __init__(self, requests: Sequence[Request], device: DeviceModel) -> None:
        """Start without work."""
        self._requests = requests
        self._device = device
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._context_tokens = 0  # of those that run

    @property
    def running(self) -> int:
        """How many sequences decode."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many requests have no token yet."""
        return len(self._waiting)

    @property
    def context_tokens(self) -> int:
        """How many tokens have KV: those of all that run, and of the prompt that has begun."""
        begun = self._waiting[0].context_tokens if self._waiting else 0
        return self._context_tokens + begun

    def has_work(self) -> bool:
        """Whether a step could begin."""
        return bool(self._running or self._waiting)

    def admit(self, number: int) -> None:
        """Queue request `number`."""
        output_tokens = self._requests[number].output_tokens
        self._waiting.append(_Sequence(number, context_tokens=0, tokens_left=output_tokens))

    def copy(self) -> "ServingEngine":
        """Return an engine in the same state, for looking ahead."""
        other = ServingEngine(self._requests, self._device)
        other._waiting = deque(replace(one) for one in self._waiting)
        other._running = [replace(one) for one in self._running]
        other._context_tokens = self._context_tokens
        return other

    def plan(self) -> StepWork:
        """Return what the next step does; it must have work."""
        running = len(self._running)
        chunk, done = 0, 0
        if self._waiting and running < self._device.batch_max:
            first = self._waiting[0]
            done = first.context_tokens
            left = self._requests[first.number].prompt_tokens - done
            chunk = min(left, self._device.chunk_tokens - running)
        return StepWork(
            decode_sequences=running,
            context_tokens=self._context_tokens + done,
            prefill_tokens=chunk,
            prefill_context_tokens=done,
        )

    def complete(self, work: StepWork) -> Emitted:
        """End the step that was planned last; what was admitted since is not in it."""
        tokens = [one.number for one in self._running]
        finished = []
        for one in self._running:
            one.tokens_left -= 1
            one.context_tokens += 1
        self._context_tokens += len(self._running)
        if work.prefill_tokens:
            self._prefilled(work.prefill_tokens, tokens)
        if any(one.tokens_left == 0 for one in self._running):
            finished = [one.number for one in self._running if one.tokens_left == 0]
            self._running = [one for one in self._running if one.tokens_left > 0]
            self._context_tokens = sum(one.context_tokens for one in self._running)
        return Emitted(tokens=tokens, finished=finished)

    def _prefilled(self, chunk: int, tokens: list[int]) -> None:
        """Move the first prompt on; with its last chunk it has its first token, and decodes."""
        first = self._waiting[0]
        first.context_tokens += chunk
        if first.context_tokens < self._requests[first.number].prompt_tokens:
            return
        self._waiting.popleft()
        first.tokens_left -= 1
        tokens.append(first.number)
        self._running.append(first)
        self._context_tokens += first.context_tokens
