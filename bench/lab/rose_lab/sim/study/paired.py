"""Comparison of arms with the subject: ratios within each seed, with confidence intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose_lab.sim.study.figures import ArmFigures

# Student's t, two-sided, 95 %, by degrees of freedom from 1 on; beyond the table the last value is
# used, which makes intervals slightly too wide.
_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Factor:
    """The subject's advantage over another arm, as a factor.

    Args:
        factor: geometric mean of the ratios of all seeds; 0 if the subject achieved nothing under
            one of the seeds.
        low: lower end of the 95 % interval, by Student's t on the logarithms; None with one seed,
            or a factor of 0.
        high: upper end, likewise.
        ratios: ratio of each counted seed.
        left_out: number of seeds without a ratio, because the other arm achieved nothing.
    """

    factor: float
    low: float | None
    high: float | None
    ratios: tuple[float, ...]
    left_out: int


def factor_of(ratios: Sequence[float]) -> Factor | None:
    """Return the geometric mean of ratios and its interval; None without any ratio.

    Args:
        ratios: ratio of each seed, >= 0; infinite or NaN if the other arm achieved nothing.
    """
    sound = [one for one in ratios if math.isfinite(one)]
    if not sound:
        return None
    left_out = len(ratios) - len(sound)
    if min(sound) <= 0:
        return Factor(0.0, None, None, tuple(sound), left_out)
    logs = np.log(np.array(sound))
    mean = float(logs.mean())
    if len(sound) == 1:
        return Factor(math.exp(mean), None, None, tuple(sound), left_out)
    t = _T[min(len(sound) - 2, len(_T) - 1)]
    half = t * float(logs.std(ddof=1)) / math.sqrt(len(sound))
    return Factor(
        math.exp(mean), math.exp(mean - half), math.exp(mean + half), tuple(sound), left_out
    )


def throughput_over(figures: Sequence[ArmFigures], subject: str, other: str) -> Factor | None:
    """Return the subject's used trajectories per hour, divided by the other arm's."""
    return _paired(
        figures,
        subject,
        other,
        lambda a, b: _ratio(a.throughput_per_hour, b.throughput_per_hour),
    )


def rollout_time_under(figures: Sequence[ArmFigures], subject: str, other: str) -> Factor | None:
    """Return the factor by which the subject's rollouts are faster."""
    return _paired(figures, subject, other, lambda a, b: _ratio(b.rollout_mean_s, a.rollout_mean_s))


def _ratio(over: float, under: float) -> float:
    return over / under if under else math.nan


def _paired(
    figures: Sequence[ArmFigures],
    subject: str,
    other: str,
    ratio: Callable[[ArmFigures, ArmFigures], float],
) -> Factor | None:
    mine, theirs = by_seed(figures, subject), by_seed(figures, other)
    return factor_of(
        [ratio(mine[seed], theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]
    )


def by_seed(figures: Sequence[ArmFigures], arm: str) -> Mapping[int, ArmFigures]:
    """Return the figures of an arm under each seed."""
    return {one.seed: one for one in figures if one.arm == arm}
