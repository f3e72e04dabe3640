"""Arms against the subject: ratios within each seed, and how sure they are."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.sim.study.figures import ArmFigures

_RESAMPLES: Final = 2000
_SIDES: Final = (2.5, 97.5)  # percent: a 95 % interval


@dataclass(frozen=True, slots=True)
class Factor:
    """How many times better the subject is than another arm.

    Args:
        factor: geometric mean over the seeds of the ratios within each.
        low: the lower end of its 95 % interval, by resampling seeds; the factor itself with one.
        high: the upper end.
        ratios: of each seed.
    """

    factor: float
    low: float
    high: float
    ratios: tuple[float, ...]


def factor_of(ratios: Sequence[float], random: np.random.Generator) -> Factor | None:
    """Return the geometric mean of ratios and its interval; None where there is no ratio.

    Args:
        ratios: > 0, of seeds; those that are no number, because an arm came to nothing, count not.
        random: for the resampling.
    """
    sound = np.array([one for one in ratios if math.isfinite(one) and one > 0])
    if not len(sound):
        return None
    logs = np.log(sound)
    drawn = random.choice(logs, (_RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.exp(np.percentile(drawn, _SIDES))
    return Factor(
        float(np.exp(logs.mean())), float(low), float(high), tuple(float(one) for one in sound)
    )


def throughput_over(
    figures: Sequence[ArmFigures], subject: str, other: str, random: np.random.Generator
) -> Factor | None:
    """Return by which factor the subject uses more trajectories in an hour."""
    return _paired(
        figures,
        subject,
        other,
        lambda a, b: _ratio(a.throughput_per_hour, b.throughput_per_hour),
        random,
    )


def rollout_time_under(
    figures: Sequence[ArmFigures], subject: str, other: str, random: np.random.Generator
) -> Factor | None:
    """Return by which factor the subject rolls a batch out faster."""
    return _paired(
        figures, subject, other, lambda a, b: _ratio(b.rollout_mean_s, a.rollout_mean_s), random
    )


def _ratio(over: float, under: float) -> float:
    return over / under if under else math.nan


def _paired(
    figures: Sequence[ArmFigures],
    subject: str,
    other: str,
    ratio: Callable[[ArmFigures, ArmFigures], float],
    random: np.random.Generator,
) -> Factor | None:
    mine, theirs = by_seed(figures, subject), by_seed(figures, other)
    return factor_of(
        [ratio(mine[seed], theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())], random
    )


def by_seed(figures: Sequence[ArmFigures], arm: str) -> Mapping[int, ArmFigures]:
    """Return the figures of an arm under each seed."""
    return {one.seed: one for one in figures if one.arm == arm}
