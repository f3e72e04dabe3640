"""Serving's side of a device: requests, and steps protected from rollouts."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Final

from typing_extensions import Self

from rose.api.tokens import Tokens
from rose.errors import InvalidArgument, OutOfMemory
from rose.executor.inputs import is_count, require
from rose.executor.serving import ServingLane, StepBatch
from rose.memory import KVSpace

_NOTHING: Final[Mapping["Request", int]] = {}


class Serving:
    """The engine that answers live traffic; made by `Device.serving`.

    Failures inside rose never raise here, and every wait is bounded. Any thread may call the
    methods, but only one thread at a time may use a request or a step.
    """

    def __init__(self, lane: Callable[[], ServingLane]) -> None:
        """Prepare the engine. `lane` is called on first use, and lays out the pool."""
        self._lay_out = lane
        self._numbers = itertools.count()

    @cached_property
    def lane(self) -> ServingLane:
        """The underlying lane, for engines that manage their own blocks."""
        return self._lay_out()

    @property
    def kv(self) -> KVSpace:
        """KV space of serving; `kv.views()` has one array per layer, indexed by block id."""
        return self.lane.kv

    @property
    def stream(self) -> int | None:
        """CUDA stream (handle) on which serving's steps must run; None on a CPU."""
        return self.lane.stream

    def warm_up(self, run: Callable[[StepBatch], None]) -> None:
        """Measure the two step shapes that certificates rely on, so that lending can begin.

        Args:
            run: function that runs one step of the given shape and waits for its end.

        Raises:
            DeadlineExceeded: the step times vary too much for a bound.
        """
        require(callable(run), "run must be a function", run)
        self.lane.warm_up(run)

    def probe(self, run: Callable[[StepBatch], None]) -> bool:
        """Run one step to measure it, if certificates lack evidence.

        Call this every few milliseconds in the engine's idle loop. Otherwise lending may stop for
        good, if steps become slower and traffic has no steps of the shapes that certificates rely
        on.

        Args:
            run: function that runs one step, as in `warm_up`.

        Returns:
            Whether a step ran.
        """
        require(callable(run), "run must be a function", run)
        batch = self.lane.probe_due()
        if batch is None:
            return False
        with self.lane.step(batch):
            run(batch)
        return True

    def request(self, *, prompt_tokens: int) -> "Request":
        """Announce a request. Call this as early as possible, because it stops rollouts.

        Args:
            prompt_tokens: number of tokens of the prompt.
        """
        return Request(self.lane, f"request {next(self._numbers)}", prompt_tokens=prompt_tokens)

    def step(
        self, decode: Iterable["Request"] = (), *, prefill: Mapping["Request", int] = _NOTHING
    ) -> "ServingStep":
        """Protect one engine step: `with serving.step(decode=[request]): run()`.

        Args:
            decode: requests that get a new token. The step computes all remaining tokens of these
                requests: the last token of a running request, or the whole prompt of a new request.
            prefill: request → number of prompt tokens to compute, for chunks of long prompts. These
                requests get no new token; for the last chunk of a prompt use `decode`.

        Raises:
            InvalidArgument: a request is closed, is named twice, or has fewer tokens left than the
                step would compute.
        """
        require(isinstance(decode, Iterable), "decode must list requests", decode)
        require(isinstance(prefill, Mapping), "prefill must map requests to tokens", prefill)
        emitting = list(decode)
        for one in (*emitting, *prefill):
            require(isinstance(one, Request), "a step must be of requests", one)
        work = {request: request.remaining for request in emitting}
        if len(work) != len(emitting) or work.keys() & prefill.keys():
            raise InvalidArgument("decode and prefill together must name each request at most once")
        work |= prefill
        for request, tokens in work.items():
            require(is_count(tokens), f"the tokens of {request.name} must be a number", tokens)
            if not 0 < tokens <= request.remaining:
                if request.remaining == 0:
                    raise InvalidArgument(f"{request.name} has no tokens left to compute")
                raise InvalidArgument(
                    f"a step of {request.name} must compute 1 to {request.remaining} tokens, "
                    f"got {tokens}"
                )
        return ServingStep(self.lane, work, emitting)


class Request(Tokens):
    """One request of live traffic, from its arrival to `close`; made by `Serving.request`.

    A request owns its blocks: each step takes the missing blocks, from rollouts if necessary, and
    `close` frees all of them. A step adds one token to each request in its `decode`.
    """

    def __init__(self, lane: ServingLane, name: str, *, prompt_tokens: int) -> None:
        super().__init__(lane.kv, tokens=prompt_tokens)
        self._lane = lane
        self.name = name
        lane.arrived(name, prompt_tokens=prompt_tokens)

    def evict(self) -> None:
        """Free the blocks for other requests; all tokens of this request must be recomputed."""
        self._free_blocks()

    def close(self) -> None:
        """Finish the request and free its blocks. When no request is left, rollouts may run."""
        if self.is_closed:
            return
        self.is_closed = True
        self._free_blocks()
        self._lane.finished(self.name)
        if not self._lane.has_requests:
            self._lane.settle()

    def take_blocks(self, tokens: int) -> bool:
        """Take blocks for the first `tokens` tokens; return False if the pool has no room."""
        require(is_count(tokens), "tokens must be an integer from 0 to 10^9", tokens)
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
        """Wait a bounded time for the running rollout segment, and take all missing blocks.

        Raises:
            OutOfMemory: the pool has no room, and the step must not run. Evict a request and retry.
                To avoid this, call `Request.take_blocks` first.
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
        """Record the computed and emitted tokens, unless the step failed."""
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
