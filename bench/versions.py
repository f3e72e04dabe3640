"""Two versions of weights at a density of one's choice, where speed alone matters."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]

# Drawn once; larger versions repeat them, which no codec can see: its blocks are smaller.
PATTERN: Final = 1 << 24
_SPREAD: Final = 0.02
_STEPS: Final = 0.89  # of the changes, so many are of one step
_JUMP_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Versions:
    """Two versions of weights; every element is a bf16 of a normal distribution."""

    new: Bits
    old: Bits


def two_versions(elements: int, *, density: float, seed: int = 23) -> Versions:
    """Return versions of which a share of `density` differs, everywhere alike."""
    rng = np.random.default_rng(seed)
    drawn = min(elements, PATTERN)
    weights = rng.normal(0, _SPREAD, drawn).astype(np.float32)
    old = (weights.view(np.uint32) >> 16).astype(np.uint16)
    sign = np.where(rng.random(drawn) < 0.5, 1, 0xFFFF).astype(np.uint16)
    size = np.where(rng.random(drawn) < _STEPS, 1, rng.integers(2, _JUMP_MAX, drawn)).astype(
        np.uint16
    )
    size[rng.random(drawn) >= density] = 0
    new = (old + size * sign).astype(np.uint16)
    return Versions(np.resize(new, elements), np.resize(old, elements))
