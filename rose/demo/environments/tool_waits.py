"""How long tools take: drawn from waits that were measured, only shorter."""

from typing import Final

import numpy as np

from rose.traces import tool_waits

# Tools of coding agents take ten seconds in the median; turns here are as much shorter.
_SCALE: Final = 1 / 32
# Longer ones are people who think, not tools.
_WAIT_MAX_S: Final = 60.0
_QUANTILES: Final = 1000


class ToolWaits:
    """Draws each wait from those of coding agents, so that their distribution is the measured one.

    A wait depends on the seed, the trajectory and the turn alone: in whatever order and on whatever
    worker turns run, each tool takes the same time.
    """

    def __init__(self, seed: int) -> None:
        """Keep the waits."""
        self._waits_s = _SCALE * np.minimum(tool_waits(_QUANTILES), _WAIT_MAX_S)
        self._seed = seed

    def __call__(self, trajectory: int, turn: int) -> float:
        """Return the seconds the tool of this turn takes."""
        random = np.random.default_rng((self._seed, trajectory, turn))
        return float(self._waits_s[random.integers(self._waits_s.size)])
