"""Distributions in a scenario: of turns, tokens and seconds.

Each draws from a given generator. Values outside `least` to `most` are clipped, which also shifts
the mean.
"""

from typing import Annotated, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from rose.errors import InvalidArgument
from rose_lab.sim.scenario.fields import Spec

Values: TypeAlias = npt.NDArray[np.float64]

_MOST: Final = 1e9
_Amount: TypeAlias = Annotated[float, Meta(ge=0, le=_MOST)]
_Positive: TypeAlias = Annotated[float, Meta(gt=0, le=_MOST)]
_Weight: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
_Sigma: TypeAlias = Annotated[float, Meta(ge=0, le=10)]
_Alpha: TypeAlias = Annotated[float, Meta(gt=0, le=100)]
# Weights may be rounded to a few digits.
_SUM_TOLERANCE: Final = 1e-6


class Constant(Spec, frozen=True, tag_field="kind", tag="constant"):
    """A constant."""

    value: _Amount

    def draw(self, random: np.random.Generator, count: int) -> Values:  # noqa: ARG002
        """Return (count,) values."""
        return np.full(count, self.value)


class LogUniform(Spec, frozen=True, tag_field="kind", tag="log-uniform"):
    """Uniform in the logarithm.

    Args:
        least: lower bound, > 0.
        most: upper bound, >= least.
    """

    least: _Positive
    most: _Positive

    def __post_init__(self) -> None:
        _check_order(self.least, self.most)

    def draw(self, random: np.random.Generator, count: int) -> Values:
        """Return (count,) values."""
        return np.exp(random.uniform(np.log(self.least), np.log(self.most), count))


class Lognormal(Spec, frozen=True, tag_field="kind", tag="lognormal"):
    """A lognormal distribution, mostly of lengths.

    Args:
        median: median before clipping, > 0.
        sigma: standard deviation of the natural logarithm.
        least: lower bound; lower values are moved to it.
        most: upper bound; higher values are moved to it.
    """

    median: _Positive
    sigma: _Sigma
    least: _Amount = 0.0
    most: _Amount = _MOST

    def __post_init__(self) -> None:
        _check_order(self.least, self.most)

    def draw(self, random: np.random.Generator, count: int) -> Values:
        """Return (count,) values."""
        drawn = self.median * np.exp(self.sigma * random.standard_normal(count))
        return np.clip(drawn, self.least, self.most)


class Pareto(Spec, frozen=True, tag_field="kind", tag="pareto"):
    """A power-law tail.

    Args:
        least: smallest value, > 0.
        alpha: exponent; without clipping, the mean is finite only if alpha > 1.
        most: upper bound; higher values are moved to it.
    """

    least: _Positive
    alpha: _Alpha
    most: _Positive = _MOST

    def __post_init__(self) -> None:
        _check_order(self.least, self.most)

    def draw(self, random: np.random.Generator, count: int) -> Values:
        """Return (count,) values."""
        # 1 - u is in (0, 1], so its power is finite unless the tail is so heavy that `most` cuts
        # it.
        with np.errstate(over="ignore"):
            drawn = self.least * (1 - random.random(count)) ** (-1 / self.alpha)
        return np.minimum(drawn, self.most)


Simple: TypeAlias = Constant | LogUniform | Lognormal | Pareto


class WeightedPart(Spec, frozen=True):
    """A component of a mixture.

    Args:
        weight: share of the values.
        of: distribution of these values.
    """

    weight: _Weight
    of: Simple


class Mixture(Spec, frozen=True, tag_field="kind", tag="mixture"):
    """Each value comes from one of several distributions.

    Args:
        parts: components, whose weights add up to 1.
    """

    parts: tuple[WeightedPart, ...]

    def __post_init__(self) -> None:
        total = sum(part.weight for part in self.parts)
        if abs(total - 1) > _SUM_TOLERANCE:
            raise InvalidArgument(f"parts: weights add up to {total:g}; make them add up to 1")

    def draw(self, random: np.random.Generator, count: int) -> Values:
        """Return (count,) values."""
        ends = np.cumsum([part.weight for part in self.parts])[:-1]
        chosen = np.searchsorted(ends, random.random(count), side="right")
        drawn = np.empty(count)
        for at, part in enumerate(self.parts):
            here = chosen == at
            drawn[here] = part.of.draw(random, int(here.sum()))
        return drawn


Distribution: TypeAlias = Constant | LogUniform | Lognormal | Pareto | Mixture


def _check_order(least: float, most: float) -> None:
    if least > most:
        raise InvalidArgument(f"most: {most:g} is below least, {least:g}; exchange them")
