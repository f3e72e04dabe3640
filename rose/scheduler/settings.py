"""What the scheduler goes by: its policy, and the three numbers that depend on the RL loop.

All else is constant: csrc/scheduler/standard.h has each value with its reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from rose import _core
from rose.errors import InvalidArgument


class PlacementPolicy(Enum):
    """Who decides where a turn runs, and which first; the baselines share everything else.

    MLFQ follows the C-MLFQ of Libra (arXiv 2606.03077), which is known here at second hand only;
    the widths of the levels and where a turn runs are ours. LEAST_LOADED_STICKY leaves a home that
    has over half as many turns again, and two more, as the least loaded worker: two alone, which
    won in pull request 7435 of verl, lose more caches than they spread where engines are full.
    """

    JOINT = "own time, cost to others, revocation risk and staleness, weighted by urgency"
    ROSE_PUBLISHED = "cache-affine, then least-loaded dedicated, then borrowed with room"
    LEAST_LOADED_STICKY = "home while it has room and at most 2 turns more, then the fewest turns"
    MLFQ = "least served first, a level up after a tool; placed as by LEAST_LOADED_STICKY"


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What the scheduler may do.

    Args:
        max_staleness: versions between the start of a trajectory and its use. One is where most
            off-policy corrections stop hurting.
        batch_trajectories: what the trainer takes for one version.
        worker_lag_max: a worker that is more versions behind the newest gets no turns. One lets it
            work while a new version is on its way.
        tuning: constants of csrc/scheduler/standard.h with another value, by name, for trials in
            simulated clusters and for tests.
    """

    max_staleness: int = 1
    batch_trajectories: int = 8
    worker_lag_max: int = 1
    tuning: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values without a meaning.

        Raises:
            InvalidArgument: a value is out of its range, or there is no such constant.
        """
        self.values()

    def values(self) -> dict[str, float]:
        """Return what a core goes by: these, and all that is constant, by name."""
        return _core.scheduler_knobs(self.knobs())

    def knobs(self) -> dict[str, float]:
        """Return what differs from the constants, by name."""
        own = {
            "max_staleness": self.max_staleness,
            "batch_trajectories": self.batch_trajectories,
            "worker_lag_max": self.worker_lag_max,
        }
        for name in own.keys() & self.tuning.keys():
            raise InvalidArgument(f"{name} is a setting of its own, and not of tuning")
        return {**own, **self.tuning}
