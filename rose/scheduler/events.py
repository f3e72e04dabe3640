"""Events and actions of the scheduler's core: classes of C++.

csrc/scheduler/events.h and actions.h describe their fields. The core only counts tokens; its driver
keeps them.
"""

from enum import Enum
from typing import TypeAlias

from rose._core import (
    Admit,
    Consumed,
    Deliver,
    Drop,
    GrantChanged,
    JobJoined,
    Paused,
    Resumed,
    Start,
    Stop,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnCut,
    TurnDone,
    TurnEnded,
    TurnProgress,
    TurnReady,
    VersionCommitted,
    VersionPublished,
    WorkerDrained,
    WorkerJoined,
    WorkerLost,
    WorkerMeasured,
)

__all__ = [
    "Action",
    "Admit",
    "Consumed",
    "Deliver",
    "Drop",
    "DropReason",
    "Event",
    "GrantChanged",
    "JobJoined",
    "Paused",
    "Resumed",
    "Start",
    "Stop",
    "TrajectoryCreated",
    "TrajectoryEnded",
    "TurnCut",
    "TurnDone",
    "TurnEnded",
    "TurnProgress",
    "TurnReady",
    "VersionCommitted",
    "VersionPublished",
    "WorkerDrained",
    "WorkerJoined",
    "WorkerLost",
    "WorkerMeasured",
]

Event: TypeAlias = (
    WorkerJoined
    | WorkerMeasured
    | WorkerDrained
    | GrantChanged
    | WorkerLost
    | VersionPublished
    | VersionCommitted
    | TrajectoryCreated
    | TurnReady
    | TurnCut
    | TurnProgress
    | TurnEnded
    | TrajectoryEnded
    | Consumed
    | JobJoined
    | Paused
    | Resumed
)
Action: TypeAlias = Admit | Start | Stop | Deliver | TurnDone | Drop


class DropReason(Enum):
    """Why a trajectory was dropped."""

    FAILED = "one of its turns failed on every attempt"
    GIVEN_UP = "it was given up before its environment finished"
    REFUSED = "a worker refused one of its turns as invalid"
    LOST = "its worker was lost twice with it"
    VERSION = "every worker has newer weights than it accepts"
