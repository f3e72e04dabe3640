"""The engines behind a rollout service: they come, go, restart and come back at any time."""

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from types import TracebackType
from typing import Any, Final

from typing_extensions import Self

from rose.adapters.fleet_limits import FleetLimits
from rose.adapters.member import FleetMember, FleetService, WorkerRow, WorkerState
from rose.clock import BootClock, Clock
from rose.engines.http import EngineFacts, Link, checked_url, open_session, within
from rose.engines.http.updates import Offer, Upstream
from rose.errors import InvalidArgument, RoseError, sentence
from rose.scheduler.worker import WorkerKind

__all__ = ["Fleet", "Upstream", "WorkerRow", "WorkerState"]

WORKERS_MAX: Final = 10_000
_LOG: Final = logging.getLogger("rose.fleet")
_DRAIN_S: Final = 10.0
_LOOK_S: Final = 3.0


class Fleet:
    """Joins engines to a service as workers, and brings them back whenever they were lost.

        async with RolloutService() as service, Fleet(service) as fleet:
            await fleet.add("http://127.0.0.1:8001")

    All engines have one model. All methods belong to the event loop's thread.

    Args:
        service: service whose workers the engines are; its `facts` become those of the fleet.
        weights: publisher that stock vLLM engines are told to follow; None: they keep their
            weights.
        first: number of the first worker; further workers count up from it.
        clock: source of times.
    """

    def __init__(
        self,
        service: FleetService,
        *,
        weights: Upstream | None = None,
        first: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._service = service
        self._weights = weights
        self._clock = clock or BootClock()
        self._next = first
        self._members: dict[int, FleetMember] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._model: EngineFacts | None = None
        self._limits: FleetLimits | None = None  # until an engine changes
        self._offer: Offer | None = None

    async def __aenter__(self) -> Self:
        self._session = open_session()
        self._service.facts = self.facts
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Report all workers as lost, and close all connections."""
        for number in tuple(self._members):
            await self._forget(number)
        await self._session.close()

    # ---- workers --------------------------------------------------------------------------------

    async def add(
        self,
        url: str,
        *,
        kind: WorkerKind | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> int:
        """Add an engine, and return the number of its worker.

        An engine that does not answer yet joins as soon as it does.

        Args:
            url: URL of the engine, such as http://127.0.0.1:8001.
            kind: kind of the worker; None: as the engine tells.
            token: the engine's bearer token.
            tls: context for https; None: the system's authorities.

        Raises:
            InvalidArgument: the URL is invalid or was added before, or the engine has another model
                than the fleet.
        """
        where = checked_url(url, has_token=token is not None)
        for member in tuple(self._members.values()):
            if member.link.url == where:
                if not member.is_draining:
                    raise InvalidArgument(f"{where} is worker {member.number} already")
                await self.remove(member.number)
        if len(self._members) >= WORKERS_MAX:
            raise InvalidArgument(f"a fleet may have at most {WORKERS_MAX} workers")
        number = self._next
        self._next += 1
        member = FleetMember(
            number,
            Link(self._session, where, token, tls),
            kind=kind,
            rollouts=self._service,
            admit=self._admit,
            changed=self._changed,
            clock=self._clock,
        )
        self._members[number] = member
        try:
            await within(_LOOK_S, member.look())
        except InvalidArgument:
            self._drop(number)
            raise
        except (RoseError, asyncio.TimeoutError) as error:
            _LOG.info("worker %d joins when its engine answers: %s", number, sentence(error))
        if self._offer is not None:
            member.offer(self._offer, self._weights)
        task = self._tasks[number] = asyncio.create_task(member.run())
        task.add_done_callback(member.ended)
        return number

    async def drain(self, number: int) -> None:
        """Move the turns of a worker elsewhere, at their last tokens; it gets no others.

        Raises:
            InvalidArgument: there is no such worker.
        """
        await self._member(number).drain()

    async def remove(self, number: int) -> None:
        """Drain a worker, and forget its engine.

        Raises:
            InvalidArgument: there is no such worker.
        """
        member = self._member(number)
        with suppress(RoseError, asyncio.TimeoutError):
            await within(_DRAIN_S, member.drain())
        await self._forget(number)

    def list(self) -> list[WorkerRow]:
        """Return a row for each worker, by number."""
        return [member.row() for member in self._members.values()]

    def facts(self) -> FleetLimits:
        """Return what the workers that are not drained can do together."""
        if self._limits is None:
            self._limits = self._common()
        return self._limits

    def _common(self) -> FleetLimits:
        known = [
            member.facts
            for member in self._members.values()
            if member.facts is not None and not member.is_draining
        ]
        features = [one.features for one in known]
        return FleetLimits(
            vocabulary=next((one.vocabulary for one in known if one.vocabulary), None),
            context_tokens=max((one.holds() or 0 for one in known), default=0),
            eos_token_ids=next((one.eos_token_ids for one in known if one.eos_token_ids), ()),
            features=frozenset.intersection(*features) if features else frozenset(),
            model=next((one.model for one in known), None),
        )

    def root(self) -> str | None:
        """Return the folder or name that the first known engine has loaded its model from."""
        known = (member.facts for member in self._members.values())
        return next((one.root or one.model for one in known if one is not None), None)

    # ---- weights --------------------------------------------------------------------------------

    def offer(self, version: int, *, folder: str | None = None) -> None:
        """Offer a version of the weights to each engine, which loads it as soon as it can.

        Returns at once, and no engine waits for another. Engines that follow a publisher by
        themselves need no offer.

        Args:
            version: number of the version.
            folder: folder with its files, for engines that load from folders; None: the publisher
                has it.
        """
        self._offer = Offer(version, folder)
        for member in self._members.values():
            member.offer(self._offer, self._weights)

    async def load(self, infos: Sequence[Mapping[str, Any]], version: int) -> None:
        """Offer a version in a folder that a client names: the `WeightSource` of a fleet.

        Args:
            infos: updates of the client; `weight_dir` of the only one is the folder.
            version: number of the version.

        Raises:
            InvalidArgument: the client sends weights in another way.
        """
        folders = [info.get("weight_dir") for info in infos]
        if len(folders) != 1 or not isinstance(folders[0], str):
            raise InvalidArgument(
                "an update must name the folder of a version as weight_dir; weights themselves go "
                "by rose.publish, and their version to /publish_weight_version"
            )
        self.offer(version, folder=folders[0])

    # ---- inside ---------------------------------------------------------------------------------

    def _member(self, number: int) -> FleetMember:
        member = self._members.get(number)
        if member is None:
            there = ", ".join(map(str, self._members)) or "none"
            raise InvalidArgument(f"there is no worker {number}; workers: {there}")
        return member

    def _admit(self, facts: EngineFacts) -> None:
        """Refuse an engine with another model than the first one that joined."""
        fleet = self._model
        if fleet is None:
            self._model = facts
            return
        if not _names(facts) & _names(fleet):
            raise InvalidArgument(
                f"a fleet has one model: it is '{fleet.model}' here, and '{facts.model}' there"
            )
        sizes = {facts.vocabulary, fleet.vocabulary} - {None}
        if len(sizes) > 1:
            raise InvalidArgument(
                f"a fleet has one vocabulary: it has {fleet.vocabulary} ids here, and "
                f"{facts.vocabulary} there"
            )

    async def _forget(self, number: int) -> None:
        self._drop(number)
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _changed(self) -> None:
        self._limits = None

    def _drop(self, number: int) -> None:
        del self._members[number]
        self._changed()
        if not self._members:
            self._model = None


def _names(facts: EngineFacts) -> set[str]:
    """Return the names of an engine's model: as requests call it, and as it was loaded."""
    return {PurePath(name).name for name in (facts.model, facts.root) if name}
