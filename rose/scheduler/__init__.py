"""The elastic rollout scheduler: which worker runs which turn of which trajectory."""

from rose.scheduler.core import SchedulerCore
from rose.scheduler.events import SchedulerStats
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings

__all__ = ["PlacementPolicy", "SchedulerCore", "SchedulerSettings", "SchedulerStats"]
