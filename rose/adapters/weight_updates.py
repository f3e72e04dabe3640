"""The state of weight updates over vLLM's routes: start, updates, finish."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rose.adapters.service import RolloutService
from rose.errors import InvalidArgument
from rose.scheduler.checks import COUNT_MAX

# Function of (updates, version). It makes the workers fetch the weights that the updates describe,
# and returns once all workers have committed the version.
WeightSource = Callable[[Sequence[Mapping[str, Any]], int], Awaitable[None]]


class WeightUpdates:
    """Collects the updates of a version, and passes them to the weight source.

    Args:
        service: service whose workers get the weights.
        source: function that makes the workers commit a version; None: weights cannot be sent over
            HTTP.
    """

    def __init__(self, service: RolloutService, source: WeightSource | None) -> None:
        self._service = service
        self.source = source
        self._infos: list[Mapping[str, Any]] | None = None
        self._turn = asyncio.Lock()  # one version at a time

    def start(self) -> None:
        """Begin a version. If another version was started and not finished, drop its updates."""
        self._infos = []

    async def update(self, info: Mapping[str, Any]) -> int | None:
        """Add an update to the started version; if none was started, commit it as a version.

        Returns:
            Number of the version that the workers committed; None if the update was only added to
            the started version.
        """
        if self._infos is not None:
            self._infos.append(info)
            return None
        return await self._bring([info], None)

    async def finish(self, version: int | None) -> int:
        """Make the workers commit the collected updates, and return the version's number.

        Args:
            version: number of the version; None: the next number.

        Raises:
            InvalidArgument: no version was started, or `version` is not above the newest version.
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
            if self.source is not None:
                await self.source(infos, wanted)
            await self._service.publish(wanted)
        return wanted
