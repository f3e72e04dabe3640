"""One engine of a fleet: joined again whenever it was lost, and brought to each offered version."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Final, Protocol

from rose.adapters.fleet_limits import FleetLimits
from rose.clock import Clock
from rose.engines.http import (
    ASSUMED,
    SEATS,
    Dialect,
    EngineFacts,
    EngineSpeed,
    HttpWorker,
    Link,
    measure,
    probe,
    within,
)
from rose.engines.http.updates import Offer, Upstream, update, wants
from rose.errors import DeadlineExceeded, RoseError, sentence
from rose.scheduler.turns import Capabilities
from rose.scheduler.worker import Worker, WorkerEvent, WorkerKind
from rose.units import NS_PER_S

_LOG: Final = logging.getLogger("rose.fleet")
_RETRY_S: Final = 0.3
_HEALTH_S: Final = 5.0
_LOG_AFTER_S: Final = 5.0
_AGAIN_S: Final = 5.0  # until an engine with unknown weights is asked again
_NEVER_S: Final = 86_400.0
_TORN: Final = "an update of its weights broke off: it gets turns once it has loaded a version"


class Placement(Protocol):
    """The scheduler that places turns."""

    async def measured(
        self,
        worker: int,
        *,
        prefill_tokens_per_s: float,
        decode_step_ms: float,
        decode_ms_per_sequence: float,
    ) -> None:
        """Change the speed by which turns are placed on a worker."""
        ...

    async def drain(self, worker: int) -> None:
        """Move all turns of a worker elsewhere, and give it no others."""
        ...


class FleetService(Protocol):
    """The service whose workers the engines are."""

    facts: Callable[[], FleetLimits]

    @property
    def scheduler(self) -> Placement:
        """The scheduler that places turns."""
        ...

    def receive(self, event: WorkerEvent) -> None:
        """Accept a worker's event."""
        ...

    async def register(self, worker: Worker, capabilities: Capabilities) -> None:
        """Add a worker, or one that was lost under the same number."""
        ...


class WorkerState(Enum):
    """State of an engine in its fleet."""

    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as `GET /workers` shows it.

    Args:
        number: number of the worker in the scheduler.
        url: URL of its engine.
        dialect: routes that the engine speaks; None: unknown yet.
        kind: dedicated or borrowed; None: unknown yet.
        state: state of the worker.
        reason: why it is not ready, why a borrower waits, or why it has not the newest version.
        model: name of the model at the engine.
        version: version of its weights; None: unknown.
        kv_tokens: tokens of context that it grants now.
        running: turns that run on it.
        speed: its speed; None: not measured yet.
    """

    number: int
    url: str
    dialect: Dialect | None
    kind: WorkerKind | None
    state: WorkerState
    reason: str | None
    model: str | None
    version: int | None
    kv_tokens: int
    running: int
    speed: EngineSpeed | None


class FleetMember:
    """An engine of a fleet. `run` joins it, again and again.

    Args:
        number: number of the worker in the scheduler.
        link: connection to the engine.
        kind: kind of the worker; None: as the engine tells.
        rollouts: service that the worker joins.
        admit: raises InvalidArgument if the engine's facts do not fit the fleet.
        changed: called when the engine has other facts, or is drained.
        clock: source of times.
    """

    def __init__(
        self,
        number: int,
        link: Link,
        *,
        kind: WorkerKind | None,
        rollouts: FleetService,
        admit: Callable[[EngineFacts], None],
        changed: Callable[[], None],
        clock: Clock,
    ) -> None:
        self.number = number
        self.link = link
        self.facts: EngineFacts | None = None
        self.is_draining = False
        self._rollouts = rollouts
        self._admit = admit
        self._changed = changed
        self._clock = clock
        self._kind = kind
        self._worker: HttpWorker | None = None
        self._state = WorkerState.JOINING
        self._reason: str | None = None
        self._update_failure: str | None = None
        self._epoch = 0
        self._speed: EngineSpeed | None = None
        self._offer: Offer | None = None
        self._upstream: Upstream | None = None
        self._offered = asyncio.Event()

    def row(self) -> WorkerRow:
        """Return what is known about the worker now."""
        facts, worker = self.facts, self._worker
        wait, version = None, None if facts is None else facts.version
        if worker is not None:
            wait = None if worker.wait is None else str(worker.wait["reason"])
            wait, version = (_TORN, None) if worker.is_torn else (wait, worker.version)
        return WorkerRow(
            self.number,
            self.link.url,
            None if facts is None else facts.dialect,
            None if facts is None else facts.kind,
            WorkerState.DRAINING if self.is_draining else self._state,
            self._reason or self._update_failure or wait,
            None if facts is None else facts.model,
            version,
            0 if worker is None else worker.kv_tokens,
            0 if worker is None else worker.running,
            self._speed if worker is None else worker.speed,
        )

    # ---- joining --------------------------------------------------------------------------------

    async def look(self) -> EngineFacts:
        """Probe the engine, and return its facts.

        Raises:
            InvalidArgument: the engine does not fit the fleet.
            Unavailable: the engine cannot run turns yet.
            DeadlineExceeded: it does not answer.
        """
        link = self.link
        facts = await probe(link.session, link.url, link.token, tls=link.tls)
        await link.ask("/health", deadline_s=_HEALTH_S)
        if self._kind is not None:
            facts = replace(facts, kind=self._kind)
        self._admit(facts)
        self.facts = facts
        self._changed()
        return facts

    async def run(self) -> None:
        """Join the engine whenever it can be joined, until it is drained and lost."""
        while (worker := await self._joined()) is not None:
            self._worker = worker
            self._state, self._reason = WorkerState.READY, None
            worker.accompany(self._update(worker))
            try:
                self._reason = await worker.run()
            finally:
                self._worker, self._epoch, self._speed = None, worker.epoch, worker.speed
            self._state = WorkerState.LOST
            _LOG.warning("worker %d (%s) is lost: %s", self.number, self.link.url, self._reason)

    async def _joined(self) -> HttpWorker | None:
        """Return the registered worker once the engine can be joined; None if it is drained."""
        began, told = self._clock.now_ns(), ""
        while not self.is_draining:
            try:
                facts = await self.look()
                speed = facts.speed or self._speed or await self._measured(facts)
                if not self.is_draining:
                    return await self._join(facts, speed)
            except RoseError as error:
                self._reason = str(error)
            waited_s = (self._clock.now_ns() - began) / NS_PER_S
            if waited_s > _LOG_AFTER_S and self._reason != told:
                told = self._reason
                _LOG.warning("worker %d waits for its engine: %s", self.number, told)
            await asyncio.sleep(_RETRY_S)
        return None

    async def _join(self, facts: EngineFacts, speed: EngineSpeed) -> HttpWorker:
        worker = HttpWorker(
            self.number,
            self.link.url,
            self._rollouts.receive,
            session=self.link.session,
            facts=facts,
            token=self.link.token,
            tls=self.link.tls,
            epoch=self._epoch,
            speed=speed,
            on_speed=self._tell_speed,
            clock=self._clock,
        )
        can = Capabilities(
            seats=facts.seats or SEATS,
            prefill_tokens_per_s=speed.prefill_tokens_per_s,
            decode_step_ms=speed.decode_step_ms,
            decode_ms_per_sequence=speed.decode_ms_per_sequence,
            version=facts.version or 0,
            domain=self.number,
        )
        await self._rollouts.register(worker, can)
        return worker

    async def _measured(self, facts: EngineFacts) -> EngineSpeed:
        if facts.kind is WorkerKind.BORROWED:
            return ASSUMED  # It may get no step now; its first turns tell its speed.
        try:
            return await measure(self.link, facts, self._clock)
        except DeadlineExceeded as error:
            _LOG.warning("worker %d: %s; its first turns tell its speed", self.number, error)
            return ASSUMED

    async def _tell_speed(self, speed: EngineSpeed) -> None:
        with suppress(RoseError):  # The worker may be lost just now.
            await self._rollouts.scheduler.measured(self.number, **asdict(speed))

    # ---- leaving --------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Move the worker's turns elsewhere, and return when it has none."""
        self.is_draining = True
        self._changed()
        if self._worker is not None:
            await self._rollouts.scheduler.drain(self.number)

    def ended(self, task: asyncio.Task[None]) -> None:
        """Note why `run` has ended early; the service may be closed, or rose has a bug."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._state, self._reason = WorkerState.LOST, f"it stays away: {sentence(error)}"
            _LOG.error("worker %d: %s", self.number, self._reason, exc_info=error)

    # ---- weights --------------------------------------------------------------------------------

    def offer(self, offer: Offer, upstream: Upstream | None) -> None:
        """Bring the engine to a version as soon as it can, without waiting for it."""
        self._offer, self._upstream = offer, upstream
        self._offered.set()

    async def _update(self, worker: HttpWorker) -> None:
        while True:
            offer = self._offer
            self._offered.clear()
            if offer is not None and wants(worker, offer):
                try:
                    await update(worker, offer, self._upstream)
                    self._update_failure = None
                except RoseError as error:
                    self._update_failure = f"version {offer.version} was not loaded: {error}"
                    _LOG.warning("worker %d: %s", self.number, self._update_failure)
            with suppress(asyncio.TimeoutError):
                await within(_AGAIN_S if worker.is_torn else _NEVER_S, self._offered.wait())
