"""Serving steps with different kinds of noise that a bound must handle."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CHUNK_TOKENS: Final = 512
_FULL_TOKENS: Final = 384  # three quarters of 512, as in the latency model
_PREFILL_SHARE: Final = 0.4


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in order, one array per field.

    Args:
        features: (n, 3) decoding sequences, context tokens, prefill tokens.
        actual_ms: (n,) durations.
        noise: (n,) duration divided by the duration without noise.
    """

    features: Floats
    actual_ms: Floats
    noise: Floats

    def kinds(self) -> dict[str, NDArray[np.bool_]]:
        """Return the kind of each step: decode only, part of a chunk, or full chunk."""
        prefill = self.features[:, 2]
        return {
            "decode": prefill == 0,
            "part": (prefill > 0) & (prefill < _FULL_TOKENS),
            "full": prefill >= _FULL_TOKENS,
        }


def _lognormal(random: np.random.Generator, steps: Floats) -> Floats:
    return random.lognormal(0, 0.08, len(steps))


def _heavy_tailed(random: np.random.Generator, steps: Floats) -> Floats:
    # Pareto with an exponent of 2.5: eighty steps in a million take three times as long.
    return 0.95 * (1 + 0.05 * random.pareto(2.5, len(steps)))


def _louder_prefill(random: np.random.Generator, steps: Floats) -> Floats:
    return np.exp(random.normal(0, np.where(steps[:, 2] > 0, 0.25, 0.03)))


def _linear_ms(steps: Floats) -> Floats:
    sequences, context, prefill = steps.T
    return 5 + 0.1 * sequences + 1e-4 * context + 0.05 * prefill + 1e-7 * prefill * context


def _knee_ms(steps: Floats) -> Floats:
    # A GPU computes and reads in parallel, so the longer of both counts.
    sequences, context, prefill = steps.T
    return np.maximum(6.0, 0.04 * (sequences + prefill)) + 1e-4 * context


def _steady(at: Floats) -> Floats:
    return np.ones_like(at)


def _slow_drift(at: Floats) -> Floats:
    return 1 + at + 0.2 * np.sin(60 * at)


def _slow_down(at: Floats) -> Floats:
    return np.where(at < 0.5, 1.0, 1.5)


Noise = Callable[[np.random.Generator, Floats], Floats]
Curve = Callable[[Floats], Floats]

# Noise, cost without noise, and the machine's slowdown as the run goes from 0 to 1.
SCENARIOS: Final[dict[str, tuple[Noise, Curve, Curve]]] = {
    "stationary": (_lognormal, _linear_ms, _steady),
    "slow_drift": (_lognormal, _linear_ms, _slow_drift),
    "slow_down_1.5x": (_lognormal, _linear_ms, _slow_down),
    "heavy_tail": (_heavy_tailed, _linear_ms, _steady),
    "louder_prefill": (_louder_prefill, _linear_ms, _steady),
    "knee": (_lognormal, _knee_ms, _steady),
}


def steps_of(scenario: str, count: int, *, seed: int) -> Steps:
    """Return `count` steps of a scenario; the same seed gives the same steps."""
    noise_of, cost_ms, slower = SCENARIOS[scenario]
    random = np.random.default_rng(seed)
    sequences = random.integers(1, 64, count)
    context = sequences * random.integers(100, 800, count)
    has_prefill = random.random(count) < _PREFILL_SHARE
    prefill = np.where(has_prefill, random.integers(1, CHUNK_TOKENS + 1, count), 0)
    features = np.stack([sequences, context, prefill], axis=1).astype(np.float64)
    noise = noise_of(random, features)
    at = np.linspace(0, 1, count)
    return Steps(features, cost_ms(features) * slower(at) * noise, noise)
