"""Versions of weights: names that a restarted trainer never uses twice."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Name of one state of the weights.

    Args:
        run: name of the training run.
        incarnation: number of the trainer process; a restarted trainer has a higher one.
        n: version number, which grows within the run and is never reused by any incarnation; tokens
            are stamped with it.
    """

    run: str
    incarnation: int
    n: int

    def __str__(self) -> str:
        return f"{self.run}/{self.incarnation}.{self.n}"


NAMELESS: Final = Version("", 0, 0)
"""Name of weights that are no published version yet."""
