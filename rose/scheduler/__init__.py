"""The elastic rollout scheduler: which worker runs which turn of which trajectory."""

from rose.scheduler.core import SchedulerCore
from rose.scheduler.elastic import ElasticRolloutScheduler
from rose.scheduler.elastic_limits import FrontLimits
from rose.scheduler.events import SchedulerStats
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.turns import Capabilities, Sampling, TrajectoryDropped, TurnResult

__all__ = [
    "Capabilities",
    "ElasticRolloutScheduler",
    "FrontLimits",
    "PlacementPolicy",
    "Sampling",
    "SchedulerCore",
    "SchedulerSettings",
    "SchedulerStats",
    "TrajectoryDropped",
    "TurnResult",
]
