"""The elastic rollout scheduler: which worker runs which turn of which trajectory."""

from rose.scheduler.elastic import ElasticRolloutScheduler
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.store_file import FileStore
from rose.scheduler.turns import (
    Capabilities,
    Sampling,
    TrajectoryDropped,
    TurnLost,
    TurnRefused,
    TurnResult,
)
from rose.scheduler.versions import VersionConflict, VersionRange
from rose.scheduler.worker import Options, TurnOutput, Worker

__all__ = [
    "Capabilities",
    "ElasticRolloutScheduler",
    "FileStore",
    "Options",
    "PlacementPolicy",
    "Sampling",
    "SchedulerSettings",
    "TrajectoryDropped",
    "TurnLost",
    "TurnOutput",
    "TurnRefused",
    "TurnResult",
    "VersionConflict",
    "VersionRange",
    "Worker",
]
