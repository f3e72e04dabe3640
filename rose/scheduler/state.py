"""The scheduler's state of trajectories and workers, without its core."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rose.scheduler.driver_events import Registered
from rose.scheduler.driver_trajectory import DriverTrajectory
from rose.scheduler.events import Admit, DropReason
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.turns import TurnResult


@dataclass(frozen=True, slots=True)
class Gone:
    """A trajectory was dropped.

    Args:
        trajectory: number of the trajectory.
        reason: reason of the drop.
        error: for `FAILED` and `REFUSED`, the worker's error; for `VERSION`, the versions that the
            turn accepts, and those of workers.
    """

    trajectory: int
    reason: DropReason
    error: str | None = None


Outcome: TypeAlias = Admit | TurnResult | Gone


@dataclass(slots=True)
class JobCounts:
    """Trajectories finished for and consumed by one job's trainer, and its newest version."""

    finished: int = 0
    consumed: int = 0
    published: int = 0


@dataclass(slots=True)
class DriverCounts:
    """Counts of trajectories; `begun = finished + given_up + dropped + unfinished`.

    Args:
        begun: trajectories started.
        finished: trajectories finished for the trainer.
        given_up: trajectories given up by their owner.
        dropped: trajectories dropped by the scheduler.
        turns: finished turns.
        resumed: finished turns that were interrupted and resumed.
        jobs: counts by job.
    """

    begun: int = 0
    finished: int = 0
    given_up: int = 0
    dropped: int = 0
    turns: int = 0
    resumed: int = 0
    jobs: dict[int, JobCounts] = field(default_factory=dict)

    def job(self, number: int) -> JobCounts:
        """Return the counts of one job, zero at first."""
        return self.jobs.setdefault(number, JobCounts())

    def copy(self) -> "DriverCounts":
        """Return a deep copy."""
        return replace(self, jobs={number: replace(job) for number, job in self.jobs.items()})


@dataclass(slots=True)
class UsedNumbers:
    """A growing set of numbers >= 0; only numbers after a gap cost memory.

    Args:
        below: all numbers below this one are in the set; most callers number trajectories upwards.
        others: further numbers in the set.
    """

    below: int = 0
    others: set[int] = field(default_factory=set)

    def __contains__(self, number: int) -> bool:
        """Return True if the number was used."""
        return 0 <= number < self.below or number in self.others

    def add(self, number: int) -> None:
        """Add a number."""
        if number >= self.below:
            self.others.add(number)
        while self.below in self.others:
            self.others.remove(self.below)
            self.below += 1


@dataclass(slots=True)
class RolloutsState:
    """The scheduler's state without its core.

    Args:
        now_ns: time of the last step, on the core's clock.
        trajectories: unfinished trajectories, by number.
        workers: registrations of workers that are not lost, by number.
        used: numbers of ended trajectories.
        counts: counts of trajectories.
        drained: numbers of workers that get no turns until they register again.
    """

    now_ns: int = 0
    trajectories: dict[int, DriverTrajectory] = field(default_factory=dict)
    workers: dict[int, Registered] = field(default_factory=dict)
    used: UsedNumbers = field(default_factory=UsedNumbers)
    counts: DriverCounts = field(default_factory=DriverCounts)
    drained: set[int] = field(default_factory=set)

    def copy(self) -> "RolloutsState":
        """Return a copy without trajectories."""
        return RolloutsState(
            now_ns=self.now_ns,
            workers=dict(self.workers),
            used=UsedNumbers(self.used.below, set(self.used.others)),
            counts=self.counts.copy(),
            drained=set(self.drained),
        )


@dataclass(frozen=True, slots=True)
class SchedulerCheckpoint:
    """A scheduler's state between two steps.

    Args:
        sequence: number of the journal that follows.
        policy: policy of the core.
        settings: settings of the core.
        core: image of the core.
        trajectories: unfinished trajectories.
        rest: the state without trajectories.
    """

    sequence: int
    policy: PlacementPolicy
    settings: SchedulerSettings
    core: bytes
    trajectories: Sequence[DriverTrajectory]
    rest: RolloutsState

    def state(self) -> RolloutsState:
        """Return the state of a driver, which shares no objects with this checkpoint."""
        copies = {one.number: one.copy() for one in self.trajectories}
        return replace(self.rest.copy(), trajectories=copies)
