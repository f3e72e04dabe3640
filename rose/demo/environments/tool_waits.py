"""How long tools take: drawn from waits that were measured."""

import math

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument


class ToolWaits:
    """Draws each wait from the given ones, so their distribution is the measured one.

    A wait depends on the seed, the trajectory and the turn alone: in whatever order and on whatever
    worker turns run, each tool takes the same time.
    """

    def __init__(
        self, waits_s: npt.NDArray[np.float64], *, scale: float = 1.0, seed: int = 0
    ) -> None:
        """Keep the waits.

        Args:
            waits_s: (n,) seconds, n > 0, all finite and >= 0.
            scale: what every wait is multiplied by, >= 0.
            seed: >= 0.
        """
        waits = np.array(waits_s, dtype=np.float64)
        if waits.ndim != 1 or waits.size == 0 or not np.isfinite(waits).all() or waits.min() < 0:
            raise InvalidArgument("tool waits must be one row of seconds, none of them below 0")
        if not 0 <= scale < math.inf or seed < 0:
            raise InvalidArgument(f"scale {scale}, seed {seed}: give numbers of at least 0")
        self._waits_s = waits * scale
        self._seed = seed

    def wait_s(self, trajectory: int, turn: int) -> float:
        """Return the seconds the tool of this turn takes."""
        if trajectory < 0 or turn < 0:
            raise InvalidArgument(f"trajectory {trajectory}, turn {turn}: both count from 0")
        random = np.random.default_rng((self._seed, trajectory, turn))
        return float(self._waits_s[random.integers(self._waits_s.size)])
