"""Serving's side of a device: requests, and steps that rollouts cannot delay."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Final

from typing_extensions import Self

from rose.api.tokens import Tokens
from rose.errors import InvalidArgument, OutOfMemory
from rose.executor.serving import ServingLane, StepBatch
from rose.memory import KVSpace

_NOTHING: Final[Mapping["Request", int]] = {}


class Serving:
    """The engine that answers live traffic; made by `Device.serving`.

    No failure of rose raises here, and no call waits without a bound. Any thread may call it; one
    thread uses a request or a step at a time.
    """

    def __init__(self, lane: Callable[[], ServingLane]) -> None:
        """Call `lane` at the first use, which lays out the pool."""
        self._lay_out = lane
        self._numbers = itertools.count()

    @cached_property
    def lane(self) -> ServingLane:
        """The lane beneath, for engines that keep their own books."""
        return self._lay_out()

    @property
    def kv(self) -> KVSpace:
        """Where its KV lies; `kv.views()` gives one array per layer, indexed by block id."""
        return self.lane.kv

    @property
    def stream(self) -> int | None:
        """The CUDA stream of its steps; None on a CPU."""
        return self.lane.stream

    def warm_up(self, run: Callable[[StepBatch], None]) -> None:
        """Measure both step shapes that certificates ask about, so that lending can begin.

        Args:
            run: runs one step of the given numbers of tokens to its end.

        Raises:
            DeadlineExceeded: the times of the steps vary too much for a bound.
        """
        self.lane.warm_up(run)

    def probe(self, run: Callable[[StepBatch], None]) -> bool:
        """Run one step only to measure it, if certificates lack evidence; say whether it ran.

        Call it in the engine's idle loop, every few milliseconds. Without it lending stops for good
        when steps become slower and none of the traffic is like those that certificates ask about.

        Args:
            run: as of `warm_up`.
        """
        batch = self.lane.probe_due()
        if batch is None:
            return False
        with self.lane.step(batch):
            run(batch)
        return True

    def request(self, *, prompt_tokens: int) -> "Request":
        """Announce a request, as early as possible: no rollout segment starts from now on.

        Args:
            prompt_tokens: length of its prompt.
        """
        return Request(self.lane, f"request {next(self._numbers)}", prompt_tokens=prompt_tokens)

    def step(
        self, decode: Iterable["Request"] = (), *, prefill: Mapping["Request", int] = _NOTHING
    ) -> "ServingStep":
        """Protect one engine step: `with serving.step(decode=[request]): run()`.

        Args:
            decode: requests that get a token. A step computes all their remaining tokens: the last
                token of a running request, the whole prompt of a fresh one.
            prefill: tokens to compute of requests that get no token, by request: chunks of long
                prompts. A chunk that ends the prompt belongs into `decode`.

        Raises:
            InvalidArgument: a request is closed, is named twice, or has no so many tokens left.
        """
        emitting = list(decode)
        work = {request: request.remaining for request in emitting}
        if len(work) != len(emitting) or work.keys() & prefill.keys():
            raise InvalidArgument("a step may name each request once")
        work |= prefill
        for request, tokens in work.items():
            if not 0 < tokens <= request.remaining:
                raise InvalidArgument(
                    f"{request.name} cannot compute {tokens} tokens: {request.remaining} remain"
                )
        return ServingStep(self.lane, work, emitting)


class Request(Tokens):
    """One request of live traffic, from its arrival to `close`; made by `Serving.request`.

    Its blocks are its own: a step takes what it needs, from rollouts if need be, and `close` frees
    them. After a step each request that got a token has one token more.
    """

    def __init__(self, lane: ServingLane, name: str, *, prompt_tokens: int) -> None:
        """Arrive."""
        super().__init__(lane.kv, tokens=prompt_tokens)
        self._lane = lane
        self.name = name
        lane.arrived(name, prompt_tokens=prompt_tokens)

    def evict(self) -> None:
        """Free its blocks, to make room for other requests; its tokens are computed again."""
        self._free_blocks()

    def close(self) -> None:
        """Finish: its blocks are free, and rollouts may run when no request is left."""
        if self.is_closed:
            return
        self.is_closed = True
        self._free_blocks()
        self._lane.finished(self.name)
        if not self._lane.has_requests:
            self._lane.settle()

    def take_blocks(self, tokens: int) -> bool:
        """Have the blocks of its first `tokens` tokens; False if the pool has no room for them."""
        missing = self._missing_blocks(tokens)
        if missing > 0:
            ids = self._lane.alloc(missing) if self._lane.ensure(missing) else None
            if ids is None:
                return False
            self.blocks += ids
        return True


class ServingStep:
    """One protected step of serving; made by `Serving.step`."""

    def __init__(
        self, lane: ServingLane, work: Mapping[Request, int], emitting: list[Request]
    ) -> None:
        self._lane = lane
        self._work = work
        self._emitting = emitting
        self._step = lane.step()

    def __enter__(self) -> Self:
        """Wait, for a bounded time, for the running rollout segment, and take all blocks needed.

        Raises:
            OutOfMemory: the pool has no room; nothing has run. Evict a request and try again, or
                ask `Request.take_blocks` first.
        """
        with ExitStack() as undo:
            undo.enter_context(self._step)
            self._take_blocks()
            self._step.commit(self._batch())
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Count the tokens as computed and emitted, unless the step failed."""
        try:
            if failure is None:
                for request, tokens in self._work.items():
                    request.computed += tokens
                for request in self._emitting:
                    request.tokens += 1
                self._lane.emitted_all(request.name for request in self._emitting)
        finally:
            self._step.__exit__(kind, failure, trace)

    def _take_blocks(self) -> None:
        for request, tokens in self._work.items():
            if not request.take_blocks(request.computed + tokens):
                raise OutOfMemory(
                    f"the pool has no room for {tokens} tokens of {request.name}: "
                    "evict another request"
                )

    def _batch(self) -> StepBatch:
        work = self._work.items()
        decoding = sum(tokens == 1 and request.computed > 0 for request, tokens in work)
        return StepBatch(
            decode_sequences=decoding,
            context_tokens=sum(request.computed + tokens for request, tokens in work),
            prefill_tokens=sum(self._work.values()) - decoding,
            requests=tuple(request.name for request in self._emitting),
        )
