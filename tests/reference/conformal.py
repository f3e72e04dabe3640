"""The slow truth of the conformal margin: every score kept, sorted for each answer."""

import math


class PlainBound:
    """The quantile of the last `window` scores at a level that follows the misses."""

    def __init__(self, *, epsilon: float, adaptation: float, window: int) -> None:
        self.epsilon = epsilon
        self.adaptation = adaptation
        self.window = window
        self.level = epsilon
        self.scores: list[float] = []

    def observe(self, score: float) -> None:
        """Add a score, move the level by whether it was a miss, and drop scores of another time."""
        miss = 1.0 if score > self.margin() else 0.0
        self.level = min(self.level + self.adaptation * (self.epsilon - miss), self.epsilon)
        self.scores = [*self.scores, score][-self.window :]
        enough = math.ceil(1 / self.epsilon)
        if len(self.scores) <= enough:
            return
        largest = 1.1 * max(1.0, *self.scores[-enough:])
        above = [place for place, one in enumerate(self.scores) if one > largest]
        if above and ((above[-1] + 1) / len(self.scores)) ** len(above) < 0.01:
            self.scores = self.scores[above[-1] + 1 :]

    def margin(self) -> float:
        """Return the quantile now; infinite when there are too few scores for the level."""
        rank = math.ceil((len(self.scores) + 1) * (1 - self.level) - 1e-9)
        if rank > len(self.scores):
            return math.inf
        return max(1.0, sorted(self.scores)[max(rank, 1) - 1])
