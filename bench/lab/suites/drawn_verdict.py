"""Rose on the drawn scenarios, compared with each baseline and with the best one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from bench.lab.suites.drawn_runs import scenario_of
from rose_lab.sim.study.figures import ArmFigures
from rose_lab.sim.study.paired import by_seed, factor_of

# Least ratios for which a scenario counts as good: no loss, and two small losses. One scenario in
# five ends within 2 % of the lower bound for every schedule; chance changes a run by 1 %.
LEAST: Final = (1.0, 0.998, 0.99)


@dataclass(frozen=True, slots=True)
class Against:
    """Rose's throughput divided by a baseline's, each the mean over the runs of a scenario.

    Args:
        arm: the baseline.
        ratios: ratio by scenario.
    """

    arm: str
    ratios: dict[int, float]

    @property
    def geometric_mean(self) -> float:
        """Return the geometric mean over the scenarios where the baseline's throughput is above 0.

        It is 0 if rose's throughput is 0 in one of them, and infinite if there are none.
        """
        factor = factor_of(tuple(self.ratios.values()))
        return math.inf if factor is None else factor.factor

    @property
    def worst(self) -> tuple[float, int]:
        """Return the smallest ratio, and its scenario."""
        return min((ratio, scenario) for scenario, ratio in self.ratios.items())

    def share_at_least(self, least: float) -> float:
        """Return the share of scenarios with at least this ratio."""
        return float(np.mean([ratio >= least for ratio in self.ratios.values()]))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison over all scenarios that have rose and at least one baseline.

    Args:
        against: comparison with each baseline.
        best: rose's throughput divided by the best baseline's, by scenario.
    """

    against: tuple[Against, ...]
    best: dict[int, float]

    @property
    def rows(self) -> tuple[Against, ...]:
        """Return each baseline, and last the best one of each scenario."""
        return (*self.against, Against("the best of them", self.best))

    def share_at_least(self, least: float) -> float:
        """Return the share of scenarios with at least this ratio to the best baseline."""
        return self.rows[-1].share_at_least(least)

    @property
    def worst(self) -> tuple[float, int]:
        """Return the smallest ratio to the best baseline, and its scenario."""
        return self.rows[-1].worst

    @property
    def geometric_mean(self) -> float:
        """Return the geometric mean of `best`, without baselines whose throughput is 0."""
        return self.rows[-1].geometric_mean


def verdict_of(figures: Sequence[ArmFigures]) -> Verdict:
    """Return the comparison; a ratio to a throughput of 0 is infinite."""
    mine = by_seed(figures, "rose")
    arms = dict.fromkeys(one.arm for one in figures if one.arm != "rose")
    against = []
    for arm in arms:
        theirs = by_seed(figures, arm)
        runs: dict[int, list[int]] = {}
        for seed in sorted(mine.keys() & theirs.keys()):
            runs.setdefault(scenario_of(seed), []).append(seed)
        ratios = {
            scenario: _over([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds])
            for scenario, seeds in sorted(runs.items())
        }
        if ratios:
            against.append(Against(arm, ratios))
    scenarios = sorted({scenario for one in against for scenario in one.ratios})
    best = {
        scenario: min(one.ratios.get(scenario, math.inf) for one in against)
        for scenario in scenarios
    }
    return Verdict(tuple(against), best)


def first_runs(figures: Sequence[ArmFigures]) -> list[ArmFigures]:
    """Return the figures of each scenario's first run."""
    return [one for one in figures if one.seed == scenario_of(one.seed)]


def median_over_bound(figures: Sequence[ArmFigures]) -> float:
    """Return the median duration of rose's batches, divided by the lower bound."""
    return float(np.median([one.gap for one in by_seed(figures, "rose").values()]))


def _over(mine: Sequence[ArmFigures], others: Sequence[ArmFigures]) -> float:
    """Return the ratio of the means; both have the same runs."""
    theirs = sum(one.throughput_per_hour for one in others)
    return sum(one.throughput_per_hour for one in mine) / theirs if theirs else math.inf
