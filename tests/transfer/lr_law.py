"""Weights as training moves them: whether one changes goes by its exponent.

One step of an optimiser moves each weight by about c * lr, and a number changes when that crosses
half of its last place: P(change) is c * lr / ulp(w). `research/delta-stats.md`, section 2.
"""

from typing import Any

import numpy as np

STEP = 0.26  # the root mean square of a step in steady state, over the learning rate


def bits_of_floats(values: Any, width: int) -> Any:
    """Round float32 to the upper 16 bits, to the nearest; or take them whole."""
    wide = values.astype(np.float32).view(np.uint32)
    if width == 32:
        return wide
    return ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)


def versions(
    count: int, learning_rate: float, *, seed: int = 0, width: int = 16, std: float = 0.02
) -> tuple[Any, Any]:
    """Return new and old bits of `count` weights, bf16 or float32."""
    rng = np.random.default_rng(seed)
    masters = rng.normal(0, std, count).astype(np.float32)
    steps = rng.normal(0, STEP * learning_rate, count).astype(np.float32)
    return bits_of_floats(masters + steps, width), bits_of_floats(masters, width)
