"""The elastic rollout scheduler: which worker runs which turn of which trajectory."""

from rose.scheduler.elastic import ElasticRolloutScheduler
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.store_file import FileStore
from rose.scheduler.turns import Capabilities, Sampling, TrajectoryDropped, TurnResult
from rose.scheduler.versions import VersionRange
from rose.scheduler.worker import Options

__all__ = [
    "Capabilities",
    "ElasticRolloutScheduler",
    "FileStore",
    "Options",
    "PlacementPolicy",
    "Sampling",
    "SchedulerSettings",
    "TrajectoryDropped",
    "TurnResult",
    "VersionRange",
]
