"""Settings of the scheduler: its policy, and three numbers that depend on the RL loop.

All other values are constants: csrc/scheduler/standard.h gives each with its reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from rose import _core
from rose.errors import InvalidArgument


class PlacementPolicy(Enum):
    """Policy that places and orders turns. JOINT is rose's own; the others are baselines.

    MLFQ follows the C-MLFQ of Libra (arXiv 2606.03077), which we know only from descriptions by
    others; level widths and placement are our own. LEAST_LOADED_STICKY keeps a turn at its home,
    the worker that caches its context, unless the home has more than 1.5 n + 2 turns, where n is
    the number of turns on the least loaded worker. In pull request 7435 of verl a limit of n + 2
    was best, but on full engines it loses more by lost caches than it gains by balance.
    """

    JOINT = "own time, cost to others, revocation risk and staleness, weighted by urgency"
    ROSE_PUBLISHED = "cache-affine, then least-loaded dedicated, then borrowed with room"
    LEAST_LOADED_STICKY = (
        "home while it has room and at most 1.5 n + 2 turns, else the fewest turns, n"
    )
    MLFQ = "least served first, a level up after a tool; placed as by LEAST_LOADED_STICKY"


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Limits of the scheduler.

    Args:
        max_staleness: most versions between the start of a trajectory and its use. With a limit of
            1, most off-policy corrections learn as well as without staleness.
        batch_trajectories: trajectories that the trainer uses per version.
        worker_lag_max: largest number of versions by which a worker may lag behind the newest
            version and still get turns. With 1, workers run turns while they receive a version.
        tuning: changed constants of csrc/scheduler/standard.h, by name, for simulations and tests.
    """

    max_staleness: int = 1
    batch_trajectories: int = 8
    worker_lag_max: int = 1
    tuning: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidArgument: a value is out of range, or a constant is unknown.
        """
        self.values()

    def values(self) -> dict[str, float]:
        """Return all settings and constants of a core, by name."""
        return _core.scheduler_knobs(self.knobs())

    def knobs(self) -> dict[str, float]:
        """Return the settings and changed constants, by name."""
        own = {
            "max_staleness": self.max_staleness,
            "batch_trajectories": self.batch_trajectories,
            "worker_lag_max": self.worker_lag_max,
        }
        for name in own.keys() & self.tuning.keys():
            raise InvalidArgument(f"{name} must not be in tuning: pass it as a setting of its own")
        return {**own, **self.tuning}
