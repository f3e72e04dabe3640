"""Versions of weights: a chain that a trainer which went back cannot take a link of twice."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """One state of the weights.

    Args:
        run: names the training run.
        incarnation: of the trainer; one that was started again has a higher one.
        n: counts up within the run and is never used twice, whatever the incarnation; what tokens
            are stamped with.
    """

    run: str
    incarnation: int
    n: int

    def __str__(self) -> str:
        return f"{self.run}/{self.incarnation}.{self.n}"


NAMELESS: Final = Version("", 0, 0)
"""What weights are called that are of no publisher yet."""
