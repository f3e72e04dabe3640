"""Requests to serving on borrowed GPUs: lengths, bursts and rates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.units import MS_PER_S
from rose_lab.sim.cluster.lending import Mix
from rose_lab.sim.scenario.distributions import Distribution
from rose_lab.sim.scenario.parts import SyntheticTraffic, Traffic

Column = npt.NDArray[np.float64]

_LENGTHS: Final = 512
_DRAWS_OF_LENGTH: Final = 16
_WINDOWS: Final = 120
# Files have one rate per ten minutes.
RATES_WINDOW_MS: Final = 600_000.0
# Quantile of the standard normal at 1 - 1/3600: the busiest second of an hour.
_BUSIEST: Final = 3.45


@dataclass(frozen=True, slots=True)
class Inputs:
    """Content of the files that scenarios name, by their path in the scenario.

    Args:
        rates: (w,) float64 rates, one for every ten minutes, by file and by model.
    """

    rates: Mapping[str, Mapping[str, Column]] = field(default_factory=dict)


def mix_of(traffic: Traffic) -> Mix:
    """Return lengths and bursts of requests, without their rate."""
    random = np.random.default_rng(0)
    prompts, outputs = (
        _lengths(one, random) for one in (traffic.prompt_tokens, traffic.output_tokens)
    )
    bursts = traffic.second_peak
    if isinstance(traffic, SyntheticTraffic):
        bursts /= traffic.minute_peak  # peak rate of a second relative to its minute
    pairs = zip(random.permutation(prompts).tolist(), outputs.tolist(), strict=True)
    return Mix(tuple(pairs), burst_variation(bursts))


def _lengths(distribution: Distribution, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return ascending lengths that follow the distribution."""
    drawn = np.sort(distribution.draw(random, _LENGTHS * _DRAWS_OF_LENGTH))
    middle = drawn.reshape(_LENGTHS, _DRAWS_OF_LENGTH).mean(axis=1)
    lengths: npt.NDArray[np.int64] = np.maximum(1, np.rint(middle)).astype(np.int64)
    return lengths


def waves(traffic: Traffic, inputs: Inputs, *, pieces: int, piece_ms: float) -> Column:
    """Return (pieces,) the rate in each piece relative to the mean rate.

    Args:
        traffic: traffic of the scenario.
        inputs: content of its files.
        pieces: number of pieces, > 0.
        piece_ms: length of a piece, > 0.

    Raises:
        InvalidArgument: a file is not among the inputs, or lacks the model.
    """
    from_ms = 0.0
    if isinstance(traffic, SyntheticTraffic):
        wave = slow_wave(traffic.minute_peak)
        window_ms = MS_PER_S * traffic.wave_s / len(wave)
    else:
        if traffic.rates not in inputs.rates:
            raise InvalidArgument(f"rates: {traffic.rates} was not read; add it to the inputs")
        rates = inputs.rates[traffic.rates].get(traffic.model)
        if rates is None:
            models = ", ".join(inputs.rates[traffic.rates])
            raise InvalidArgument(
                f"model: {traffic.rates} has no {traffic.model}; use one of {models}"
            )
        wave, window_ms, from_ms = rates / rates.mean(), RATES_WINDOW_MS, MS_PER_S * traffic.from_s
    middle_ms = from_ms + piece_ms * (np.arange(pieces) + 0.5)
    shaped: Column = wave[(middle_ms // window_ms).astype(np.int64) % len(wave)]
    return shaped


def burst_variation(peak: float) -> float:
    """Return the variation at which the busiest second of an hour has `peak` times the mean rate.

    The variation is the standard deviation over the mean of a Gamma factor. The quantile of this
    factor is taken by Wilson and Hilferty's formula, which is accurate to a few percent here.

    Args:
        peak: rate of the busiest second over the mean rate, >= 1.
    """
    low, high = 0.0, 3.0
    for _ in range(40):
        middle = (low + high) / 2
        spread = middle**2 / 9
        reached = max(0.0, 1 - spread + _BUSIEST * np.sqrt(spread)) ** 3
        low, high = (middle, high) if reached < peak else (low, middle)
    return low if low > 1e-6 else 0.0


def slow_wave(peak: float, windows: int = _WINDOWS) -> Column:
    """Return (windows,) one wave with mean 1 and a maximum of about `peak` >= 1."""
    angle = 2 * np.pi * (np.arange(windows) + 0.5) / windows
    low, high = 0.0, 300.0
    for _ in range(60):
        middle = (low + high) / 2
        wave = np.exp(middle * (np.cos(angle) - 1))
        low, high = (middle, high) if wave.max() / wave.mean() < peak else (low, middle)
    wave = np.exp(low * (-np.cos(angle) - 1))
    shaped: Column = wave / wave.mean()
    return shaped
