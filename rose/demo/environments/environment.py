"""What a world is to its player: a seed opens it, words go in, words and rewards come out."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Observed:
    """What came of one thing that was said.

    Args:
        observation: what to read next; when it is over, how it ended.
        reward: for this step alone.
        is_over: nothing may be said after this.
        tool: name of the tool that was used, whose time has to be waited for; None for none.
    """

    observation: str
    reward: float
    is_over: bool
    tool: str | None


class Environment(Protocol):
    """One episode at a time. Equal seeds and words give equal observations and rewards."""

    @property
    def name(self) -> str:
        """What trajectories and reports call it."""
        ...

    def reset(self, seed: int) -> str:
        """Begin the episode of `seed` (>= 0) and return the first observation."""
        ...

    def step(self, said: str) -> Observed:
        """Say something, anything.

        Raises:
            InvalidArgument: the episode is over, or none was begun.
        """
        ...
