"""The slow truth of the conformal margin: every score kept, sorted for each answer."""

import math


class PlainBound:
    """The quantile of the last `window` scores at a level that follows the misses."""

    def __init__(
        self, *, epsilon: float, adaptation: float, cold_margin: float, window: int
    ) -> None:
        self.epsilon = epsilon
        self.adaptation = adaptation
        self.cold_margin = cold_margin
        self.window = window
        self.level = epsilon
        self.scores: list[float] = []

    def observe(self, score: float) -> None:
        """Add a score, and move the level by whether it was a miss."""
        miss = 1.0 if score > self.upper() else 0.0
        self.level += self.adaptation * (self.epsilon - miss)
        self.level = min(0.5, max(-0.1, self.level))
        self.scores.append(score)

    def upper(self) -> float:
        """Return the margin now."""
        recent = sorted(self.scores[-self.window :])
        if not recent:
            return self.cold_margin
        at_least = self.cold_margin if (len(recent) + 1) * self.epsilon < 1 else 1.0
        rank = math.ceil((len(recent) + 1) * (1 - self.level))
        score = recent[max(rank, 1) - 1] if rank <= len(recent) else 1.5 * recent[-1]
        return max(at_least, score)
