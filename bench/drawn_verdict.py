"""How rose did on the drawn scenarios: against each baseline, and against what is possible."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rose.sim.scenario.arms import Arm
from rose.sim.study.figures import ArmFigures
from rose.sim.study.paired import by_seed


@dataclass(frozen=True, slots=True)
class Against:
    """Rose's throughput over a baseline's.

    Args:
        arm: the baseline.
        ratios: by seed.
    """

    arm: str
    ratios: dict[int, float]

    @property
    def geometric_mean(self) -> float:
        """Return that of all seeds in which the baseline came to something."""
        finite = [ratio for ratio in self.ratios.values() if 0 < ratio < math.inf]
        return float(np.exp(np.mean(np.log(finite)))) if finite else math.inf

    @property
    def worst(self) -> tuple[float, int]:
        """Return the smallest ratio, and its seed."""
        return min((ratio, seed) for seed, ratio in self.ratios.items())

    def share_at_least(self, least: float) -> float:
        """Return the share of the seeds with such a ratio or a larger one."""
        return float(np.mean([ratio >= least for ratio in self.ratios.values()]))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Over all seeds that have rose and at least one baseline.

    Args:
        against: each baseline.
        best: by seed, rose's throughput over the best baseline's.
    """

    against: tuple[Against, ...]
    best: dict[int, float]

    def share_at_least(self, least: float) -> float:
        """Return the share of the seeds where rose has so much of the best baseline."""
        return float(np.mean([ratio >= least for ratio in self.best.values()]))

    @property
    def worst(self) -> tuple[float, int]:
        """Return the smallest ratio to the best baseline, and its seed."""
        return min((ratio, seed) for seed, ratio in self.best.items())


def verdict_of(figures: Sequence[ArmFigures]) -> Verdict:
    """Return how rose did; its ratio to a baseline that came to nothing is infinite."""
    mine = by_seed(figures, Arm.ROSE.value)
    arms = dict.fromkeys(one.arm for one in figures if one.arm != Arm.ROSE.value)
    against = []
    for arm in arms:
        theirs = by_seed(figures, arm)
        ratios = {
            seed: _over(mine[seed], theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())
        }
        if ratios:
            against.append(Against(arm, ratios))
    seeds = sorted({seed for one in against for seed in one.ratios})
    best = {seed: min(one.ratios.get(seed, math.inf) for one in against) for seed in seeds}
    return Verdict(tuple(against), best)


def _over(mine: ArmFigures, other: ArmFigures) -> float:
    if not other.throughput_per_hour:
        return math.inf
    return mine.throughput_per_hour / other.throughput_per_hour
