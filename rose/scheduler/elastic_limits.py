"""How much the asyncio front keeps, and how long it waits."""

import math
from dataclasses import dataclass, fields

from rose.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """Bounds of the front; what only the core decides is in `SchedulerSettings`.

    Args:
        events_max: events of workers that may wait for the scheduler's task; with one more, the
            worker that sends it is taken as lost. Some seconds of a thousand workers.
        trajectories_max: that are begun and not over; `start` of one more waits for one to end.
        tick_s: how often the core steps when nothing happens: leases run out and stalls are seen
            that late. While every turn is with its environment, half a second.
        checkpoint_s: how often a checkpoint is written; a restart reads as much journal.
        rejoin_s: a worker of an earlier life that is not back so long after a restart is lost; what
            it had, and what is placed there until then, waits so long.
    """

    events_max: int = 65_536
    trajectories_max: int = 100_000
    tick_s: float = 0.05
    checkpoint_s: float = 30.0
    rejoin_s: float = 5.0

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidArgument(f"FrontLimits({field.name}={value}) must be above 0")
