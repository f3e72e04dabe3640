"""Engines of the end-to-end suite: one serves requests, the other runs endless rollouts."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

from bench.gpu.decoder import Decoder, Step
from bench.gpu.requests import Request
from rose.executor import StepBatch

CHUNK: Final = 512
WAIT_S: Final = 0.05
# Rollouts are mostly prefill: 77-86 % of the tokens in ROSE's paper.
CHUNKS_OF_ROUND: Final = 4
BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64)


class Watched(Protocol):
    """Observer of serving: a `ServingLane`, or nobody."""

    def arrived(self, request_id: str, *, prompt_tokens: int) -> None: ...
    def emitted_all(self, request_ids: Sequence[str]) -> None: ...
    def finished(self, request_id: str) -> None: ...
    def step(self, batch: StepBatch) -> AbstractContextManager[Any]: ...
    def warm_up(self, run: Callable[[StepBatch], None]) -> None: ...


class Nobody:
    """The observer of arms without rose."""

    def arrived(self, request_id: str, *, prompt_tokens: int) -> None:
        """Ignore it."""

    def emitted_all(self, request_ids: Sequence[str]) -> None:
        """Ignore it."""

    def finished(self, request_id: str) -> None:
        """Ignore it."""

    def warm_up(self, run: Callable[[StepBatch], None]) -> None:
        """Collect no evidence."""

    def step(self, batch: StepBatch) -> AbstractContextManager[Any]:
        """Run the step as it is."""
        del batch
        return nullcontext()


class Place:
    """The stream of an engine's work on a GPU, or this thread on a CPU."""

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream

    def inside(self) -> AbstractContextManager[Any]:
        import torch

        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def wait(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()


class ServingEngine:
    """Continuous batching on one thread: prompt chunks first, otherwise one token for each
    sequence.

    Args:
        decoder: model of the engine.
        place: stream of its work.
        chunk: most prompt tokens of a step.
    """

    def __init__(self, decoder: Decoder, place: Place, *, chunk: int = CHUNK) -> None:
        shape = decoder.shape
        self.place, self.slots, self.chunk = place, shape.slots, min(chunk, shape.context)
        whole = shape.layers
        self._prefill = Step(decoder, 1, self.chunk, every=whole)
        sizes = [size for size in BUCKETS if size < shape.slots]
        self._decode = {size: Step(decoder, size, 1, every=whole) for size in (*sizes, shape.slots)}

    def warm_up(self, watched: Watched) -> None:
        """Run the largest steps until the observer has evidence of their time."""

        def run(batch: StepBatch) -> None:
            if batch.prefill_tokens:
                self.prefill(0, batch.context_tokens - batch.prefill_tokens)
            else:
                self.decode({0: batch.context_tokens - 1})

        watched.warm_up(run)

    def capture(self) -> None:
        import torch

        pool = torch.cuda.graph_pool_handle()
        for step in (self._prefill, *self._decode.values()):
            step.capture(self.place.stream, pool)

    def run(
        self,
        requests: Sequence[Request],
        watched: Watched,
        *,
        stop: threading.Event,
        began_s: float,
    ) -> None:
        """Serve until all requests are done, or `stop` is set. A thread delivers them."""
        inbox: queue.SimpleQueue[Request] = queue.SimpleQueue()
        source = threading.Thread(
            target=_arrive, args=(requests, watched, inbox, stop, began_s), daemon=True
        )
        source.start()
        try:
            _Batch(self, watched, inbox, began_s).run(len(requests), stop)
        finally:
            stop.set()
            source.join()

    def prefill(self, slot: int, first: int) -> None:
        with self.place.inside():
            self._prefill.aim([slot], [first])
            for part in self._prefill.parts:
                part.replay()
        self.place.wait()

    def decode(self, lengths: dict[int, int]) -> None:
        """Give each slot with a length its next token."""
        rows = next(size for size in self._decode if size > max(lengths))
        with self.place.inside():
            self._decode[rows].aim(list(range(rows)), [lengths.get(one, 0) for one in range(rows)])
            for part in self._decode[rows].parts:
                part.replay()
        self.place.wait()


def _arrive(
    requests: Sequence[Request],
    watched: Watched,
    inbox: "queue.SimpleQueue[Request]",
    stop: threading.Event,
    began_s: float,
) -> None:
    """Let requests arrive at their times. Notify rose first, so the gate closes before the work."""
    for one in requests:
        if stop.wait(max(0.0, began_s + one.at_s - time.perf_counter())):
            return
        watched.arrived(str(one.number), prompt_tokens=one.prompt_tokens)
        inbox.put(one)


class _Batch:
    """The current requests of a serving engine."""

    def __init__(
        self,
        engine: ServingEngine,
        watched: Watched,
        inbox: "queue.SimpleQueue[Request]",
        began_s: float,
    ) -> None:
        self._engine, self._watched, self._inbox = engine, watched, inbox
        self._began_s = began_s
        self._waiting: list[Request] = []
        self._done_tokens = 0  # of the current prompt
        self._running: dict[int, Request] = {}
        self._ended = 0

    def run(self, count: int, stop: threading.Event) -> None:
        while self._ended < count and not stop.is_set():
            self._take(wait=not (self._waiting or self._running))
            free = [one for one in range(self._engine.slots) if one not in self._running]
            if self._waiting and free:
                self._prefill(free[0])
            elif self._running:
                self._decode()

    def _take(self, *, wait: bool) -> None:
        try:
            while True:
                self._waiting.append(self._inbox.get(timeout=WAIT_S if wait else 0))
                wait = False
        except queue.Empty:
            return

    def _prefill(self, slot: int) -> None:
        one = self._waiting[0]
        tokens = min(self._engine.chunk, one.prompt_tokens - self._done_tokens)
        with self._watched.step(StepBatch(0, self._done_tokens, tokens)):
            self._engine.prefill(slot, self._done_tokens)
        self._done_tokens += tokens
        if self._done_tokens < one.prompt_tokens:
            return
        self._done_tokens = 0
        self._waiting.pop(0)
        self._running[slot] = one
        self._emit([slot])

    def _decode(self) -> None:
        lengths = {
            slot: one.prompt_tokens + len(one.emitted_s) for slot, one in self._running.items()
        }
        with self._watched.step(StepBatch(len(lengths), sum(lengths.values()), 0)):
            self._engine.decode(lengths)
        self._emit(list(lengths))

    def _emit(self, slots: list[int]) -> None:
        now_s = time.perf_counter() - self._began_s
        for slot in slots:
            self._running[slot].emitted_s.append(now_s)
        self._watched.emitted_all([str(self._running[slot].number) for slot in slots])
        for slot in slots:
            if self._running[slot].is_done:
                self._watched.finished(str(self._running.pop(slot).number))
                self._ended += 1


class RolloutEngine:
    """Runs prompts of rollouts and decode steps in turn, as long as it may run.

    Args:
        decoder: model of the engine.
        place: stream of its work.
        every: layers in one segment.
    """

    def __init__(self, decoder: Decoder, place: Place, *, every: int, chunk: int = CHUNK) -> None:
        shape = decoder.shape
        self.place = place
        chunk = min(chunk, shape.context // 2)
        self._steps = [Step(decoder, 1, chunk, every=every)] * CHUNKS_OF_ROUND
        self._steps.append(Step(decoder, shape.slots, 1, every=every))
        self._steps[-1].aim(list(range(shape.slots)), [chunk] * shape.slots)
        self._turn = 0
        self.tokens = 0

    def capture(self) -> None:
        import torch

        pool = torch.cuda.graph_pool_handle()
        for step in self._steps[-2:]:
            step.capture(self.place.stream, pool)

    @property
    def next(self) -> Step:
        return self._steps[self._turn % len(self._steps)]

    def count(self) -> None:
        """Count the next step as done."""
        self.tokens += self.next.rows * self.next.tokens
        self._turn += 1

    def run(self, one_step: Callable[[Step], bool], stop: threading.Event) -> None:
        """Run steps until `stop` is set. `one_step` returns whether the step was completed."""
        while not stop.is_set():
            with self.place.inside():
                is_done = one_step(self.next)
            if is_done:
                self.count()
