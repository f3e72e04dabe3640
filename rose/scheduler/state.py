"""What a scheduler keeps of trajectories and workers, but for its core."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rose.scheduler.course import Course
from rose.scheduler.events import Admit, DropReason
from rose.scheduler.front_events import Registered
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.turns import TurnResult


@dataclass(frozen=True, slots=True)
class Gone:
    """Nobody will have a trajectory. `error` is what the last worker that failed on it said."""

    trajectory: int
    reason: DropReason
    error: str | None = None


Outcome: TypeAlias = Admit | TurnResult | Gone


@dataclass(slots=True)
class JobCounts:
    """What was handed to the trainer of one job, used by it, and its newest version."""

    finished: int = 0
    consumed: int = 0
    published: int = 0


@dataclass(slots=True)
class FrontCounts:
    """What became of trajectories; `begun = finished + given_up + dropped + those under way`.

    Args:
        begun: so far.
        finished: handed on to the trainer.
        given_up: by whoever began them.
        dropped: by the scheduler, which says so.
        turns: that are done.
        resumed: of them, those that went on elsewhere or later after they had begun.
        jobs: by number.
    """

    begun: int = 0
    finished: int = 0
    given_up: int = 0
    dropped: int = 0
    turns: int = 0
    resumed: int = 0
    jobs: dict[int, JobCounts] = field(default_factory=dict)

    def job(self, number: int) -> JobCounts:
        """Return those of one job, which begin when it is first asked for."""
        return self.jobs.setdefault(number, JobCounts())

    def copy(self) -> "FrontCounts":
        """Return some that stay as they are now."""
        return replace(self, jobs={number: replace(job) for number, job in self.jobs.items()})


@dataclass(slots=True)
class UsedNumbers:
    """A set of numbers >= 0 that only grows; it costs memory for those behind a gap only.

    Args:
        below: all numbers below it were used, as trajectories count up.
        others: used numbers from there on.
    """

    below: int = 0
    others: set[int] = field(default_factory=set)

    def __contains__(self, number: int) -> bool:
        """Whether the number was used."""
        return 0 <= number < self.below or number in self.others

    def add(self, number: int) -> None:
        """Take a number as used."""
        if number >= self.below:
            self.others.add(number)
        while self.below in self.others:
            self.others.remove(self.below)
            self.below += 1


@dataclass(slots=True)
class RolloutsState:
    """All but the core.

    Args:
        now_ns: of the last step, on the core's clock.
        trajectories: that are not over.
        workers: that joined and were not lost, as they registered.
        used: numbers of trajectories that are over.
        counts: of what became of trajectories.
    """

    now_ns: int = 0
    trajectories: dict[int, Course] = field(default_factory=dict)
    workers: dict[int, Registered] = field(default_factory=dict)
    used: UsedNumbers = field(default_factory=UsedNumbers)
    counts: FrontCounts = field(default_factory=FrontCounts)

    def copy(self) -> "RolloutsState":
        """Return one without trajectories that stays as it is now."""
        return RolloutsState(
            now_ns=self.now_ns,
            workers=dict(self.workers),
            used=UsedNumbers(self.used.below, set(self.used.others)),
            counts=self.counts.copy(),
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A scheduler between two steps.

    Args:
        sequence: number of the journal that begins here.
        policy: of the core.
        settings: of the core.
        core: its image.
        trajectories: that are not over.
        rest: of the state, without trajectories.
    """

    sequence: int
    policy: PlacementPolicy
    settings: SchedulerSettings
    core: bytes
    trajectories: Sequence[Course]
    rest: RolloutsState

    def state(self) -> RolloutsState:
        """Return what a front starts from; it shares nothing with this."""
        copies = {one.number: one.copy() for one in self.trajectories}
        return replace(self.rest.copy(), trajectories=copies)
