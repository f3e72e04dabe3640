"""The core of the rollout service: it generates the sequences of requests on its workers.

Each sequence is a trajectory of one turn. A revoked turn resumes at its next token on another
worker, and the client does not notice.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Final

from typing_extensions import Self

from rose.adapters.board import Board
from rose.adapters.fleet_limits import FleetLimits
from rose.adapters.gate import GatedWorker
from rose.adapters.sequences import Ask, SequenceInFlight
from rose.errors import DeadlineExceeded, InvalidArgument, RoseError, Unavailable
from rose.scheduler.checks import COUNT_MAX
from rose.scheduler.elastic import ElasticRolloutScheduler
from rose.scheduler.metrics import SchedulerMetrics
from rose.scheduler.settings import SchedulerSettings
from rose.scheduler.turns import Capabilities
from rose.scheduler.worker import Worker, WorkerEvent

# The scheduler starts at most this many trajectories per version, for training. Here each request
# states the versions that it accepts, so this limit is set beyond reach.
_SETTINGS: Final = SchedulerSettings(batch_trajectories=1 << 20)


class Overloaded(Unavailable):
    """The number of sequences in flight is at its limit."""


class PauseMode(Enum):
    """Treatment of sequences in flight during a pause.

    KEEP: running turns are recalled, and continue after the pause.
    WAIT: running turns run to their end.
    ABORT: sequences end with their tokens so far.
    """

    KEEP = "keep"
    WAIT = "wait"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits of the rollout service.

    Args:
        sequences: largest number of sequences in flight; further requests are refused.
        choices: largest number of sequences in one request.
        context_tokens: largest number of tokens of a prompt and its output together.
        request_s: longest time in seconds from a request's start to its last token.
        pause_s: longest time in seconds for workers to return their turns when the service pauses;
            with `PauseMode.WAIT` the limit is `request_s`.
        body_bytes: largest size of a request's body, in bytes.
        body_s: longest time in seconds for a request's body to arrive.
    """

    sequences: int = 4096
    choices: int = 256
    context_tokens: int = 131_072
    request_s: float = 3600.0
    pause_s: float = 30.0
    body_bytes: int = 8 << 20
    body_s: float = 30.0


_LIMITS: Final = ServiceLimits()


class RolloutService:
    """Generates sequences on the workers that are registered with it.

        async with RolloutService() as service:
            await service.register(worker, Capabilities(seats=8, ...))
            async with service.generate([Ask(...)]) as generation:
                await generation.finished()

    Workers may call `receive` from any thread. All other methods belong to the event loop's thread.

    Args:
        limits: limits of the service.
    """

    def __init__(self, limits: ServiceLimits = _LIMITS) -> None:
        self.limits = limits
        self._ended = asyncio.Event()
        self._board = Board(self._ended.set)
        self._scheduler = ElasticRolloutScheduler(_SETTINGS, watches=(self._board,))
        self._is_open = False
        self.is_paused = False  # whether turns are queued
        self._next = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._generations: set[Generation] = set()
        self.draw = random.Random()
        self.published = 0
        self.facts: Callable[[], FleetLimits] = self._facts

    async def __aenter__(self) -> Self:
        await self._scheduler.__aenter__()
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End every generation, and recall every turn."""
        self._is_open = False
        for generation in tuple(self._generations):
            generation.fail(Unavailable("the rollout service was closed"))
            generation.close()
        if self._ending:
            await asyncio.wait(self._ending)
        await self._scheduler.__aexit__(kind, error, traceback)

    # ---- workers --------------------------------------------------------------------------------

    def receive(self, event: WorkerEvent) -> None:
        """Accept a worker's event, without waiting. Any thread may call this."""
        self._scheduler.receive(event)

    async def register(self, worker: Worker, capabilities: Capabilities) -> None:
        """Add a worker. It gets turns once it reports a capacity grant.

        Args:
            worker: worker that reports its events to `receive`.
            capabilities: capabilities of the worker.

        Raises:
            InvalidArgument: another worker has the same number.
            Unavailable: the service is closed.
        """
        gate = GatedWorker(
            worker,
            fits=self._board.fits,
            report=self.receive,
            is_closed=self.is_paused,
        )
        if worker.number in self._board.gates:
            raise InvalidArgument(f"worker {worker.number} is registered already")
        self._board.gates[worker.number] = gate
        try:
            await self._scheduler.register(gate, capabilities)
        except RoseError:
            self._board.gates.pop(worker.number, None)
            raise

    def _facts(self) -> FleetLimits:
        return FleetLimits(None, self.limits.context_tokens, (), frozenset(), None)

    def versions(self) -> dict[int, int]:
        """Return the number of workers by version of their weights."""
        return self._board.versions()

    def metrics(self) -> SchedulerMetrics:
        """Return a Prometheus collector; a sequence is a trajectory of one turn."""
        return SchedulerMetrics(self._scheduler)

    def worker_count(self) -> int:
        """Return the number of registered workers."""
        return len(self._board.workers)

    def sequence_count(self) -> int:
        """Return the number of sequences in flight."""
        return len(self._board.sequences)

    def resumed_count(self) -> int:
        """Return the number of finished sequences that were interrupted and resumed."""
        return self._scheduler.counts().resumed

    def publish(self, version: int) -> None:
        """Record a version that the trainer has published. An older version is ignored.

        The scheduler's core does not get the version, because it would then give no turns to
        workers with old weights. In this service each request states the versions it accepts.

        Raises:
            InvalidArgument: the version is out of range.
        """
        if not 0 <= version <= COUNT_MAX:
            raise InvalidArgument(f"version must be from 0 to {COUNT_MAX}, got {version}")
        self.published = max(self.published, version)

    # ---- pauses ---------------------------------------------------------------------------------

    async def pause(self, mode: PauseMode) -> None:
        """Stop generation, and return once no worker generates. New turns wait for `resume`.

        Args:
            mode: treatment of sequences in flight.

        Raises:
            DeadlineExceeded: a worker still generates; the service stays paused.
        """
        self.is_paused = True
        if mode is PauseMode.ABORT:
            for sequence in tuple(self._board.sequences.values()):
                sequence.abort()
        for gate in tuple(self._board.gates.values()):
            gate.close(is_recalling=mode is not PauseMode.WAIT)
        patience_s = self.limits.request_s if mode is PauseMode.WAIT else self.limits.pause_s
        try:
            await asyncio.wait_for(self._until_quiet(), patience_s)
        except asyncio.TimeoutError:
            raise DeadlineExceeded(
                f"workers must return their turns within {patience_s} s; the service stays paused"
            ) from None

    async def resume(self) -> None:
        """End the pause and start all queued turns. Without a pause this does nothing."""
        self.is_paused = False
        for gate in tuple(self._board.gates.values()):
            gate.open()

    async def _until_quiet(self) -> None:
        while any(gate.running for gate in self._board.gates.values()):
            self._ended.clear()
            await self._ended.wait()

    # ---- sequences ------------------------------------------------------------------------------

    def generate(
        self,
        asks: Sequence[Ask],
        *,
        session: str | None = None,  # noqa: ARG002 (kept for conversations)
        request: str | None = None,  # noqa: ARG002
        job: int = 0,  # noqa: ARG002
    ) -> "Generation":
        """Begin to generate sequences.

        Raises:
            InvalidArgument: the number of sequences is 0 or too large, or a context is too long.
            Overloaded: too many sequences are in flight.
            Unavailable: the service is closed.
            VersionConflict: no worker has weights that the sequences accept.
        """
        if not self._is_open:
            raise Unavailable("the rollout service is not open")
        limits, there = self.limits, self._board.versions()
        if not 1 <= len(asks) <= limits.choices:
            raise InvalidArgument(
                f"a request must have 1 to {limits.choices} sequences, got {len(asks)}"
            )
        for ask in asks:
            count = len(ask.prompt) + ask.sampling.max_new_tokens
            if not ask.prompt or count > limits.context_tokens:
                raise InvalidArgument(
                    f"a prompt must have at least 1 token, and prompt and max_tokens together at "
                    f"most {limits.context_tokens}, got {len(ask.prompt)} and "
                    f"{ask.sampling.max_new_tokens}"
                )
            if not ask.versions.is_any and not any(map(ask.versions.fits, there)):
                raise ask.versions.conflict(there)
        if self.sequence_count() + len(asks) > limits.sequences:
            raise Overloaded(
                f"{self.sequence_count()} of {limits.sequences} sequences are in flight, "
                f"and the request has {len(asks)}: retry later"
            )
        generation = Generation(self, self._next, asks)
        self._next += len(asks)
        self._generations.add(generation)
        self._board.sequences.update({one.number: one for one in generation.sequences})
        return generation

    async def run(self, sequence: SequenceInFlight, group: int) -> None:
        """Run one sequence to its end. Only `Generation` calls this."""
        ask, number = sequence.ask, sequence.number
        try:
            await self._scheduler.start(number, group=group, seed=ask.seed)
            result = await self._scheduler.generate(
                number, turn=0, prompt=ask.prompt, sampling=ask.sampling
            )
        except RoseError as error:
            sequence.fail(error)
        else:
            sequence.finish(result)

    def retire(self, generation: "Generation") -> None:
        """Finish or abort the trajectories of a generation. Only `Generation` calls this."""
        self._generations.discard(generation)
        for sequence in generation.sequences:
            self._later(self._forget(sequence))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work to its end, even if the request that caused it is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _forget(self, sequence: SequenceInFlight) -> None:
        try:
            # An error means that the scheduler has ended, and all its trajectories with it.
            with suppress(RoseError):
                if sequence.is_done:
                    await self._scheduler.finish(sequence.number)
                    await self._scheduler.consumed(1)
                else:
                    await self._scheduler.abort(sequence.number)
        finally:
            self._board.sequences.pop(sequence.number, None)


class Generation:
    """The sequences of one request. At the end of a `with` block, unfinished sequences are aborted.

    Args:
        service: service that runs the sequences.
        first: number of the first trajectory, which is also the number of their group.
        asks: the requested sequences.
    """

    def __init__(self, service: RolloutService, first: int, asks: Sequence[Ask]) -> None:
        self._service = service
        self._changed = asyncio.Event()
        self.sequences = [
            SequenceInFlight(first + place, ask, self._changed.set)
            for place, ask in enumerate(asks)
        ]
        loop = asyncio.get_running_loop()
        limit_s = service.limits.request_s
        late = DeadlineExceeded(f"a request must end within {limit_s} s")
        self._alarm = loop.call_later(limit_s, self.fail, late)
        self._tasks = [
            loop.create_task(service.run(sequence, first)) for sequence in self.sequences
        ]
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def fail(self, error: RoseError) -> None:
        """End all unfinished sequences with an error."""
        for sequence in self.sequences:
            sequence.fail(type(error)(*error.args))

    def close(self) -> None:
        """Abort all unfinished sequences, without waiting."""
        if not self._is_closed:
            self._is_closed = True
            self._alarm.cancel()
            for task in self._tasks:
                task.cancel()
            self._service.retire(self)

    async def finished(self) -> list[SequenceInFlight]:
        """Wait until all sequences have ended, and return them.

        Raises:
            DeadlineExceeded: the request took longer than the limit.
            RoseError: a sequence failed.
        """
        async for _ in self.changes():
            pass
        return self.sequences

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever sequences have new tokens, until all have ended.

        Raises:
            RoseError: as in `finished`.
        """
        is_over = False
        while not is_over:
            self._changed.clear()
            for sequence in self.sequences:
                if sequence.error is not None:
                    raise sequence.error
            is_over = all(sequence.is_over for sequence in self.sequences)
            yield
            if not is_over:
                await self._changed.wait()
