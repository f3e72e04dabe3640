"""The elastic rollout scheduler: which worker runs which turn of which trajectory."""

from typing import TYPE_CHECKING

from rose.scheduler.elastic import ElasticRolloutScheduler
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
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

if TYPE_CHECKING:
    from rose.scheduler.store_file import FileStore

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

if not TYPE_CHECKING:  # Otherwise type checkers would accept any name.

    def __getattr__(name: str) -> object:
        """Load `FileStore` on first use: it needs the extra `wire`."""
        if name != "FileStore":
            raise AttributeError(f"module 'rose.scheduler' has no attribute '{name}'")
        from rose.scheduler.store_file import FileStore  # noqa: PLC0415 (an extra)

        return FileStore
