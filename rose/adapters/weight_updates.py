"""vLLM's routes for new weights: start, updates, finish."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rose.adapters.service import RolloutService
from rose.errors import InvalidArgument
from rose.scheduler.coerce import COUNT_MAX

# Brings workers to the version that the updates describe, and returns when they have committed it.
WeightSource = Callable[[Sequence[Mapping[str, Any]], int], Awaitable[None]]


class WeightUpdates:
    """Collects the updates of a version, and lets its source bring it to the workers.

    Args:
        service: service whose workers get the weights.
        source: brings a version; None where versions come by `rose.publish` alone.
    """

    def __init__(self, service: RolloutService, source: WeightSource | None) -> None:
        self._service = service
        self._source = source
        self._infos: list[Mapping[str, Any]] | None = None
        self._turn = asyncio.Lock()  # one version at a time

    @property
    def has_source(self) -> bool:
        """Whether weights can be sent this way."""
        return self._source is not None

    def start(self) -> None:
        """Begin a version; updates of one that was not finished are forgotten."""
        self._infos = []

    async def update(self, info: Mapping[str, Any]) -> int | None:
        """Take an update. Outside of a started version it is a version of its own.

        Returns:
            The version, if this update is a whole one; None within a started version.
        """
        if self._infos is not None:
            self._infos.append(info)
            return None
        return await self._bring([info], None)

    async def finish(self, version: int | None) -> int:
        """Bring the collected updates to the workers, and return their version.

        Args:
            version: number of the version; None for the next one.

        Raises:
            InvalidArgument: no version was started, or the number is not new.
        """
        if self._infos is None:
            raise InvalidArgument("start_weight_update must come before finish_weight_update")
        infos, self._infos = self._infos, None
        return await self._bring(infos, version)

    async def _bring(self, infos: Sequence[Mapping[str, Any]], version: int | None) -> int:
        async with self._turn:
            newest = max((self._service.published, *self._service.versions()))
            wanted = newest + 1 if version is None else version
            if not newest < wanted <= COUNT_MAX:
                raise InvalidArgument(
                    f"weight_version must be above {newest} and at most {COUNT_MAX}, got {wanted}"
                )
            if self._source is not None:
                await self._source(infos, wanted)
            self._service.publish(wanted)
        return wanted
