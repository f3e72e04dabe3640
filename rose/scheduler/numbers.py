"""Which numbers were used, when nearly all of those below some number were."""

from collections.abc import Iterable


class UsedNumbers:
    """A set of numbers >= 0 that only grows; it costs memory for those behind a gap only."""

    def __init__(self, below: int = 0, others: Iterable[int] = ()) -> None:
        """Start with all numbers below `below`, and `others`."""
        self.below = below
        self.others = set(others)

    def __contains__(self, number: int) -> bool:
        """Whether the number was used."""
        return 0 <= number < self.below or number in self.others

    def add(self, number: int) -> None:
        """Take a number as used."""
        if number >= self.below:
            self.others.add(number)
        while self.below in self.others:
            self.others.remove(self.below)
            self.below += 1
