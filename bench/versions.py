"""Two versions of weights with a chosen density, for measurements of speed only."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bench.entropy import exponents

Bits = npt.NDArray[np.uint16]

# Elements are drawn once; larger versions repeat them. Codecs cannot notice: blocks are smaller.
PATTERN: Final = 1 << 24
_SPREAD: Final = 0.02
_STEPS: Final = 0.89  # share of changes that are one step
_JUMP_MAX: Final = 64
_HALVINGS: Final = 60  # then the rate is as exact as a float can be


@dataclass(frozen=True, slots=True)
class Versions:
    """Two versions of weights; every old element is a normally distributed bf16."""

    new: Bits
    old: Bits


def two_versions(elements: int, *, density: float, seed: int = 23) -> Versions:
    """Return versions that differ in a share `density`; smaller weights change more often.

    An optimizer changes all weights by about the same amount. So a weight whose last bit is worth
    half as much changes twice as often, up to always. STRAT exploits this.
    """
    rng = np.random.default_rng(seed)
    drawn = min(elements, PATTERN)
    weights = rng.normal(0, _SPREAD, drawn).astype(np.float32)
    old = (weights.view(np.uint32) >> 16).astype(np.uint16)
    sign = np.where(rng.random(drawn) < 0.5, 1, 0xFFFF).astype(np.uint16)
    size = np.where(rng.random(drawn) < _STEPS, 1, rng.integers(2, _JUMP_MAX, drawn)).astype(
        np.uint16
    )
    size[rng.random(drawn) >= _change_rates(old, density)[exponents(old)]] = 0
    new = (old + size * sign).astype(np.uint16)
    return Versions(np.resize(new, elements), np.resize(old, elements))


def _change_rates(old: Bits, density: float) -> npt.NDArray[np.float64]:
    """Return the probability of a change for each exponent, so that `density` of all change."""
    elements = np.bincount(exponents(old), minlength=256)
    per_step = 2.0 ** (127.0 - np.arange(256))
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        share = (elements * np.minimum(1.0, rate * per_step)).sum() / elements.sum()
        low, high = (rate, high) if share < density else (low, rate)
    return np.minimum(1.0, high * per_step)
