"""The core of the rollout service: it generates the sequences of requests on its workers.

Each sequence is a turn of a trajectory, and linked requests are turns of one trajectory. A revoked
turn resumes at its next token on another worker, and the client does not notice.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final

from typing_extensions import Self

from rose.adapters.conversations import Prompt
from rose.adapters.fleet_limits import FleetLimits
from rose.adapters.generation import Generation, RequestInFlight
from rose.adapters.keyed import KeyedRequests, digest_of
from rose.adapters.limits import (
    ContextTooLong,
    Overloaded,
    ServiceLimits,
    check_ask,
    check_count,
    context_of,
)
from rose.adapters.pauses import PauseMode, Pauses
from rose.adapters.sequences import Ask
from rose.adapters.text import Tokenizer
from rose.adapters.turns import Turns
from rose.adapters.watch import ServiceWatch
from rose.clock import VERSION_EPOCH_MS, unix_ms
from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.elastic import ElasticRolloutScheduler
from rose.scheduler.metrics import SchedulerMetrics
from rose.scheduler.settings import SchedulerSettings
from rose.scheduler.turns import Capabilities
from rose.scheduler.versions import VersionRange
from rose.scheduler.worker import Worker, WorkerEvent

_LIMITS: Final = ServiceLimits()
_NAME: Final = "rose"  # name of the model while no engine has told one
# Without settings, only requests state which versions they accept. The numbers are the largest that
# the core takes together.
_LAG_MAX: Final = 10**9
# Clients do not tell when a conversation is over, so many idle caches are of conversations that do
# not return. No turn waits longer than this for room that only such caches use.
TUNING: Final = {"cache_wait_ms": 5000.0}
_SETTINGS: Final = SchedulerSettings(
    max_staleness=1 << 20, batch_trajectories=1 << 20, worker_lag_max=_LAG_MAX, tuning=TUNING
)


class RolloutService:
    """Generates sequences on the workers that are registered with it.

        async with RolloutService() as service:
            await service.register(worker, Capabilities(seats=8, ...))
            async with service.generate([Ask(...)]) as generation:
                await generation.finished()

    Workers may call `receive` from any thread. All other methods belong to the event loop's thread.

    Args:
        limits: limits of the service.
        settings: settings of the scheduler, such as a limit of staleness; the default has no limit.
        tokenizer: tokenizer for text and stop texts; None: requests with stop texts are refused.
        eos_token_ids: end tokens of the model, besides those that the workers report.
    """

    def __init__(
        self,
        limits: ServiceLimits = _LIMITS,
        *,
        settings: SchedulerSettings = _SETTINGS,
        tokenizer: Tokenizer | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self.limits = limits
        self.eos_token_ids = tuple(eos_token_ids)
        self.tokenizer = tokenizer
        self.model: str | None = None
        self._watch = ServiceWatch(self._workers_changed)
        self.facts: Callable[[], FleetLimits] = self.registered_limits
        self.published = 0
        self._scheduler = ElasticRolloutScheduler(settings, watches=(self._watch,))
        self._turns = Turns(
            self._scheduler,
            self._watch,
            limits,
            later=self._later,
            is_limited=settings is not _SETTINGS,
        )
        self._keyed = KeyedRequests(tokens_max=limits.answer_tokens, answer_s=limits.answer_s)
        self._pauses = Pauses(self._scheduler, self._later)
        self._requests: set[RequestInFlight] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._alone: asyncio.TimerHandle | None = None  # runs while no worker is registered

    async def __aenter__(self) -> Self:
        await self._scheduler.__aenter__()
        self._is_open = True
        self._turns.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End every request and conversation, and recall every turn."""
        self._is_open = False
        if self._alone is not None:
            self._alone.cancel()
        self._pauses.close()
        for request in tuple(self._requests):
            request.fail(Unavailable("the rollout service was closed"))
        self._turns.close()
        while self._ending:
            await asyncio.wait(self._ending)
        await self._scheduler.__aexit__(kind, error, traceback)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer for text and stop texts; its end token ends every sequence."""
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        if tokenizer is not None and tokenizer.eos_token_id is not None:
            self.eos_token_ids = (*self.eos_token_ids, int(tokenizer.eos_token_id))

    # ---- workers --------------------------------------------------------------------------------

    def receive(self, event: WorkerEvent) -> None:
        """Accept a worker's event, without waiting. Any thread may call this."""
        self._scheduler.receive(event)

    async def register(
        self, worker: Worker, capabilities: Capabilities, limits: FleetLimits | None = None
    ) -> None:
        """Add a worker. It gets turns once it reports a capacity grant.

        Args:
            worker: worker that reports its events to `receive`.
            capabilities: capabilities of the worker.
            limits: limits of the worker; None: it has none of the optional features.

        Raises:
            InvalidArgument: another worker has the same number.
            Unavailable: the service is closed.
        """
        await self._scheduler.register(worker, capabilities)
        self._watch.limit(worker.number, limits)

    def registered_limits(self) -> FleetLimits:
        """Return what the registered workers can do; `facts` is this function at first."""
        return self._watch.limits()

    def versions(self) -> dict[int, int]:
        """Return the number of workers by version of their weights."""
        return self._watch.versions()

    def metrics(self) -> SchedulerMetrics:
        """Return a Prometheus collector; a sequence is a turn."""
        return SchedulerMetrics(self._scheduler)

    @property
    def scheduler(self) -> ElasticRolloutScheduler:
        """Scheduler that places the turns."""
        return self._scheduler

    def worker_count(self) -> int:
        """Return the number of registered workers."""
        return len(self._watch.workers)

    def sequence_count(self) -> int:
        """Return the number of sequences in flight."""
        return self._turns.count

    def conversation_count(self) -> int:
        """Return the number of conversations, with those that wait for their next turn."""
        return len(self._turns.conversations)

    def resumed_count(self) -> int:
        """Return the number of finished sequences that were interrupted and resumed."""
        return self._scheduler.counts().resumed

    async def publish(self, version: int, *, job: int = 0) -> None:
        """Record a version that the trainer has published. An older version is ignored.

        Raises:
            InvalidArgument: the version is out of range.
        """
        # Publishers at a known port number their versions by the time, before any worker has one.
        newest = self._watch.newest()
        most = max(newest, unix_ms() - VERSION_EPOCH_MS) + _LAG_MAX
        if version > most:
            raise InvalidArgument(f"version must be at most {most}, got {version}")
        if version <= newest + _LAG_MAX:  # Workers that lag further behind would get no turns.
            await self._scheduler.publish(version, job=job)
        self.published = max(self.published, version)

    def _workers_changed(self) -> None:
        if self._watch.workers:
            if self._alone is not None:
                self._alone.cancel()
                self._alone = None
        elif self._requests:
            self._wait_for_workers()

    def _wait_for_workers(self) -> None:
        if self._alone is None and self._is_open:
            wait_s = self.limits.worker_wait_s
            self._alone = asyncio.get_running_loop().call_later(wait_s, self._give_up)

    def _give_up(self) -> None:
        self._alone = None
        error = Unavailable(
            f"no worker is registered, and none came within {self.limits.worker_wait_s} s"
        )
        for request in tuple(self._requests):
            request.fail(error)

    # ---- pauses ---------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """True if a pause holds, so that turns are queued."""
        return len(self._pauses) > 0

    async def pause(
        self, mode: PauseMode, *, owner: str | None = None, lease_s: float = 600.0
    ) -> str:
        """Stop generation, and return once no worker generates. New turns wait.

        Several pauses may hold at once; turns run again when the last one has ended.

        Args:
            mode: treatment of sequences in flight.
            owner: name of the client that pauses; an owner has one pause.
            lease_s: time in seconds after which the pause ends by itself.

        Returns:
            The name of the pause, for `resume`.

        Raises:
            DeadlineExceeded: a worker still generates; the pause holds.
            PauseOvertaken: the pause was ended before the workers were quiet.
        """
        if mode is PauseMode.ABORT:
            for request in tuple(self._requests):
                for sequence in request.sequences:
                    sequence.abort()
        is_waiting = mode is PauseMode.WAIT
        return await self._pauses.begin(
            owner,
            is_recalling=not is_waiting,
            lease_s=lease_s,
            patience_s=self.limits.request_s if is_waiting else self.limits.pause_s,
        )

    async def resume(self, owner: str | None = None) -> None:
        """End the pauses of an owner, or the pause with this name; None: those without an owner.

        Turns run again if no pause is left. Without such a pause this does nothing.
        """
        await self._pauses.end(owner)

    # ---- requests -------------------------------------------------------------------------------

    def generate(
        self,
        asks: Sequence[Ask],
        *,
        session: str | None = None,
        request: str | None = None,
        job: int = 0,
    ) -> Generation:
        """Begin to generate sequences.

        Args:
            asks: the sequences.
            session: name of the conversation that a single sequence continues; None: it continues
                the conversation whose last prompt it extends, if there is one.
            request: key of the request. A repeated request with this key returns the same running
                or finished sequences, and a client that leaves may come back within a grace time.
            job: number of the training job.

        Raises:
            InvalidArgument: the request is beyond a limit of the service or of the workers.
            KeyReused: the key was used for another request.
            Overloaded: too many sequences are in flight.
            Unavailable: the service is closed.
            VersionConflict: the versions that the sequences accept can never come.
        """
        if not self._is_open:
            raise Unavailable("the rollout service is not open")
        check_count(len(asks), self.limits)
        prompts = _prompts(asks)
        digest = b""
        if request is not None:
            digest = digest_of(asks, [one.tokens for one in prompts])
            there = self._keyed.find(request, digest)
            if there is not None:
                return Generation(there, self._left)
        self._check_job(job)
        fleet = self.facts()
        for ask, prompt in zip(asks, prompts, strict=True):
            check_ask(ask, prompt, self.limits, fleet, has_tokenizer=self._tokenizer is not None)
            self._check_versions(ask.versions)
        if self.sequence_count() + len(asks) > self.limits.sequences:
            raise Overloaded(
                f"{self.sequence_count()} of {self.limits.sequences} sequences are in flight, "
                f"and the request has {len(asks)}: retry later"
            )
        made = RequestInFlight(limit_s=self.limits.request_s, over=self._over)
        self._requests.add(made)
        if request is not None:
            self._keyed.add(request, digest, made)
        talks = self._turns.talks(prompts, session=session, job=job)
        eos = (*self.eos_token_ids, *fleet.eos_token_ids)
        self._turns.begin(made, asks, talks, fleet=fleet, eos=eos, tokenizer=self._tokenizer)
        if not self._watch.workers:
            self._wait_for_workers()
        return Generation(made, self._left)

    def model_name(self) -> str:
        """Return the name of the model in requests: `model`, or else the name at the engines."""
        return self.model or self.facts().model or _NAME

    def context_tokens(self) -> int:
        """Return the largest number of tokens of a prompt and its output."""
        return context_of(self.limits, self.facts())

    def room(self, prompt_tokens: int) -> int:
        """Return the largest number of tokens that may follow a prompt.

        Raises:
            ContextTooLong: the prompt leaves no room.
        """
        most = self.context_tokens()
        if prompt_tokens >= most:
            raise ContextTooLong(most, prompt_tokens, 1)
        return most - prompt_tokens

    def _check_job(self, job: int) -> None:
        jobs = self._watch.jobs()
        if jobs and job not in jobs:
            raise InvalidArgument(f"job must be one that workers run, got {job}: {sorted(jobs)}")

    def _check_versions(self, wanted: VersionRange) -> None:
        """Refuse versions above the newest: nobody knows whether they will ever come."""
        least = max(wanted.at_least or 0, wanted.exact or 0)
        if least > max(self.published, self._watch.newest()):
            raise wanted.conflict(self._watch.versions())

    def _over(self, request: RequestInFlight) -> None:
        self._requests.discard(request)
        self._keyed.over(request)

    def _left(self, request: RequestInFlight) -> None:
        """Give up a request that no client waits for."""
        if request.clients or request.is_over:
            return
        if request in self._keyed and self._is_open:
            loop = asyncio.get_running_loop()
            error = Unavailable("the client has left, and has not come back")
            request.grace = loop.call_later(self.limits.grace_s, request.fail, error)
        else:
            request.fail(Unavailable("the client has left"))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work to its end, even if the request that caused it is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _prompts(asks: Sequence[Ask]) -> list[Prompt]:
    """Return the prompts; equal neighbours share one object."""
    prompts: list[Prompt] = []
    for place, ask in enumerate(asks):
        is_same = place > 0 and ask.prompt == asks[place - 1].prompt
        prompts.append(prompts[-1] if is_same else Prompt(ask.prompt))
    return prompts
