"""The serving engine: continuous batching with a chunk of one prompt beside decoding sequences."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rose_lab.sim.device import DeviceModel, StepWork
from rose_lab.sim.request import Request


@dataclass(slots=True)
class _Sequence:
    """A request in the engine."""

    number: int
    context_tokens: int  # in its KV cache: prefilled prompt and tokens that were fed back
    tokens_left: int


@dataclass(frozen=True, slots=True)
class Emitted:
    """Output of a step.

    Args:
        tokens: requests that got a token.
        finished: requests that got their last token.
    """

    tokens: list[int]
    finished: list[int]


class ServingEngine:
    """Plans steps and their output, without times.

    Prompts are served first come, first served, in chunks that leave room for one token per
    decoding sequence. A prompt starts while fewer than `batch_max` sequences decode.
    """

    def __init__(self, requests: Sequence[Request], device: DeviceModel) -> None:
        self._requests = requests
        self._device = device
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._context_tokens = 0  # of running sequences

    @property
    def running(self) -> int:
        """Number of decoding sequences."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of requests without a token."""
        return len(self._waiting)

    @property
    def context_tokens(self) -> int:
        """Tokens in the KV cache: those of running sequences and of a prompt in progress."""
        begun = self._waiting[0].context_tokens if self._waiting else 0
        return self._context_tokens + begun

    def has_work(self) -> bool:
        """Return True if a step could begin."""
        return bool(self._running or self._waiting)

    def admit(self, number: int) -> None:
        """Queue request `number`."""
        output_tokens = self._requests[number].output_tokens
        self._waiting.append(_Sequence(number, context_tokens=0, tokens_left=output_tokens))

    def copy(self) -> "ServingEngine":
        """Return a copy, for looking ahead."""
        other = ServingEngine(self._requests, self._device)
        other._waiting = deque(replace(one) for one in self._waiting)
        other._running = [replace(one) for one in self._running]
        other._context_tokens = self._context_tokens
        return other

    def plan(self) -> StepWork:
        """Return the work of the next step; call it only if `has_work()`."""
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
        """End the planned step; requests that were admitted after the plan are not part of it."""
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
        """Advance the first prompt; after its last chunk, its request has a token and decodes."""
        first = self._waiting[0]
        first.context_tokens += chunk
        if first.context_tokens < self._requests[first.number].prompt_tokens:
            return
        self._waiting.popleft()
        first.tokens_left -= 1
        tokens.append(first.number)
        self._running.append(first)
        self._context_tokens += first.context_tokens
