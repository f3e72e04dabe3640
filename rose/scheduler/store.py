"""Where a scheduler writes down what it must not forget.

A checkpoint is the whole state; a journal holds each step since then. Whatever a step does is done
after it was written, so whoever restores the checkpoint and takes the journal's steps again knows
at least what anybody outside knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rose.scheduler.course import Course
from rose.scheduler.front_events import Registered, Step
from rose.scheduler.numbers import UsedNumbers
from rose.scheduler.rollouts import FrontCounts, RolloutsState
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A scheduler between two steps.

    Args:
        sequence: number of the journal that begins here.
        policy: of the core.
        settings: of the core.
        core: what it is restored of.
        now_ns: of the last step, on the core's clock.
        trajectories: that are not over.
        workers: that joined and were not lost.
        used_below: numbers below this were used.
        used_others: used numbers from there on.
        counts: so far.
    """

    sequence: int
    policy: PlacementPolicy
    settings: SchedulerSettings
    core: bytes
    now_ns: int
    trajectories: Sequence[Course]
    workers: Sequence[Registered]
    used_below: int
    used_others: Sequence[int]
    counts: FrontCounts

    def state(self) -> RolloutsState:
        """Return what a front starts from."""
        return RolloutsState(
            now_ns=self.now_ns,
            trajectories={one.number: one for one in self.trajectories},
            workers={one.worker: one for one in self.workers},
            used=UsedNumbers(self.used_below, self.used_others),
            counts=self.counts,
        )


class Store(Protocol):
    """Keeps checkpoints and journals. One thread, but for `save`.

    What it raises is `Unavailable`, if it cannot read or write, and in `load` `CorruptData`, if
    what is there was not written by it.
    """

    def load(self) -> tuple[Checkpoint, list[Step]] | None:
        """Return the newest checkpoint and the steps since then; None if there is none."""
        ...

    def append(self, step: Step) -> None:
        """Write a step down; it outlives this process when this returns."""
        ...

    def rotate(self) -> int:
        """Begin another journal, and return its number."""
        ...

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint, and forget the journals before it; any thread."""
        ...

    def close(self) -> None:
        """Write nothing more."""
        ...
