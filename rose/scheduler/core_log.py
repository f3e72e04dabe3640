"""A core that can be written down: as all that it was told, which says everything."""

import json
import zlib
from collections.abc import Sequence
from typing import Any

from typing_extensions import Self

from rose.errors import CorruptData, InternalError
from rose.scheduler.core import SchedulerCore
from rose.scheduler.events import Action, Event
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings


class LoggedCore(SchedulerCore):
    """Remembers every step, since the same steps give the same core.

    What it remembers grows by some bytes with each event, and restoring it takes as long as the
    core took for all of them (about a microsecond each).
    """

    def __init__(self, settings: SchedulerSettings, policy: PlacementPolicy) -> None:
        super().__init__(settings, policy)
        self._steps: list[tuple[int, list[Any]]] = []

    def step(self, events: Sequence[Event], now_ns: int) -> list[Action]:
        """Apply events, as `SchedulerCore.step`, and remember them."""
        rows = self.rows(events)
        actions = self.step_rows(rows, now_ns)
        self._steps.append((now_ns, rows))
        return actions

    def snapshot(self) -> bytes:
        """Return what `restored` makes the same core of."""
        return zlib.compress(json.dumps(self._steps, separators=(",", ":")).encode(), 1)

    @classmethod
    def restored(cls, settings: SchedulerSettings, policy: PlacementPolicy, image: bytes) -> Self:
        """Return a core as it was when `image` was made of it, with the same settings.

        Raises:
            CorruptData: it is no image of a core.
        """
        core = cls(settings, policy)
        try:
            for now_ns, rows in json.loads(zlib.decompress(image)):
                core.step_rows([tuple(row) for row in rows], now_ns)
                core._steps.append((now_ns, rows))
        except (zlib.error, ValueError, TypeError, InternalError) as error:
            raise CorruptData(f"the scheduler's core cannot be restored: {error}") from error
        return core
