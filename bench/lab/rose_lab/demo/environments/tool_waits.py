"""Durations of tools: measured waits, scaled down."""

from typing import Final

import numpy as np

from rose_lab.traces import tool_waits

# Tools of coding agents take ten seconds in the median; turns here are 32 times shorter.
_SCALE: Final = 1 / 32
# Longer waits come from users who think, not from tools.
_WAIT_MAX_S: Final = 60.0
_QUANTILES: Final = 1000


class ToolWaits:
    """Draws waits from the distribution measured for coding agents.

    A wait depends on seed, trajectory and turn alone, not on the order or the worker of the turns.
    """

    def __init__(self, seed: int) -> None:
        self._waits_s = _SCALE * np.minimum(tool_waits(_QUANTILES), _WAIT_MAX_S)
        self._seed = seed

    def __call__(self, trajectory: int, turn: int) -> float:
        """Return the duration of this turn's tool, in seconds."""
        random = np.random.default_rng((self._seed, trajectory, turn))
        return float(self._waits_s[random.integers(self._waits_s.size)])
