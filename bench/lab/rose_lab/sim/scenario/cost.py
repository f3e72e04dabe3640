"""Cost of a run: in total, per trajectory and per correct answer."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.errors import InvalidArgument
from rose.scheduler.worker import WorkerKind
from rose_lab.sim.cluster.world import ClusterOutcome, LendingTimeline
from rose_lab.sim.scenario.arms import TRAINING_GPUS, WHOLE_GPUS, rules_of
from rose_lab.sim.scenario.build import Built
from rose_lab.sim.scenario.parts import Prices

_MS_PER_HOUR: Final = 3_600_000.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a run in dollars, by purpose.

    Args:
        dedicated: rollout-only GPUs, for the whole time.
        trainer: training GPUs, for the whole time.
        borrowed: borrowed GPUs, for the time in which they compute; whole GPUs for all lent time.
        opportunity: serving's lost earnings for the same time as `borrowed`.
        trajectories: trajectories that the trainer learned from.
    """

    dedicated: float
    trainer: float
    borrowed: float
    opportunity: float
    trajectories: int

    @property
    def total(self) -> float:
        """Return the cost for all purposes."""
        return self.dedicated + self.trainer + self.borrowed + self.opportunity

    @property
    def per_trajectory(self) -> float | None:
        """Return dollars per used trajectory; None without used trajectories."""
        return self.total / self.trajectories if self.trajectories else None

    def per_correct_answer(self, accept_rate: float) -> float | None:
        """Return dollars per accepted trajectory.

        Args:
            accept_rate: share of trajectories with a correct answer, in (0, 1]. The simulation
                cannot know this share, so reports show the cost for several values.

        Raises:
            InvalidArgument: the share is out of range.
        """
        if not 0 < accept_rate <= 1:
            raise InvalidArgument(
                f"accept_rate is {accept_rate}; give a share above 0 and at most 1"
            )
        per_trajectory = self.per_trajectory
        return None if per_trajectory is None else per_trajectory / accept_rate


def cost_of(built: Built, outcome: ClusterOutcome, prices: Prices, *, trainer_gpus: int) -> Cost:
    """Return the cost of a run.

    Args:
        built: arm of the run.
        outcome: outcome of the run.
        prices: prices per hour.
        trainer_gpus: number of training GPUs, >= 0.
    """
    hours = outcome.ended_ms / _MS_PER_HOUR
    dedicated, borrowed = 0.0, 0.0  # GPU-hours
    rules = zip(built.world.workers, built.gpus, outcome.busy_ms_by_worker, strict=True)
    for worker, gpus, busy_ms in rules:
        if worker.kind is WorkerKind.DEDICATED:
            dedicated += gpus * hours
        elif built.arm == TRAINING_GPUS or worker.lending is None:
            continue  # already paid for as a training GPU
        elif rules_of(built.arm).loan is WHOLE_GPUS:
            borrowed += gpus * lent_ms(worker.lending, outcome.ended_ms) / _MS_PER_HOUR
        else:
            borrowed += gpus * float(busy_ms) / _MS_PER_HOUR
    return Cost(
        dedicated=dedicated * prices.dedicated,
        trainer=trainer_gpus * hours * prices.trainer,
        borrowed=borrowed * prices.borrowed,
        opportunity=borrowed * prices.opportunity,
        trajectories=used_count(built, outcome),
    )


def used_count(built: Built, outcome: ClusterOutcome) -> int:
    """Return the number of trajectories that the trainer learned from."""
    return sum(
        int(np.count_nonzero((job.used_by >= 0) & kept))
        for job, kept in zip(outcome.jobs, built.kept, strict=True)
    )


def lent_ms(lending: LendingTimeline, until_ms: float) -> float:
    """Return the lent device time up to `until_ms`, weighted by the lent share."""
    ends = np.minimum(np.append(lending.at_ms[1:], until_ms), until_ms)
    lasts = np.maximum(ends - lending.at_ms, 0.0)
    return float((lasts * lending.share).sum())
