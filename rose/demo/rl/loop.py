"""What the trajectories of an RL loop are made of, and what became of them."""

import math
from dataclasses import dataclass

from rose.demo.rl.trajectory import TRAJECTORY_TOKENS_MAX
from rose.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What trajectories are made of.

    Args:
        in_flight: trajectories that are started and not finished, > 0.
        group_size: trajectories that share a task, > 0.
        turn_tokens_max: a turn is cut there, > 0.
        context_tokens_max: a trajectory ends before its context grows beyond this.
        temperature: of sampling, >= 0.
    """

    in_flight: int
    group_size: int
    turn_tokens_max: int
    context_tokens_max: int
    temperature: float

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("in_flight", "group_size", "turn_tokens_max", "context_tokens_max"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.context_tokens_max > TRAJECTORY_TOKENS_MAX:
            raise InvalidArgument(
                f"context_tokens_max is {self.context_tokens_max}: no trajectory of over "
                f"{TRAJECTORY_TOKENS_MAX} tokens is learned from"
            )
        if not 0 <= self.temperature < math.inf:
            raise InvalidArgument(f"temperature must be >= 0, not {self.temperature}")


@dataclass(frozen=True, slots=True)
class LoopCounts:
    """What became of the trajectories; `started = finished + dropped + in_flight + lost`.

    Args:
        started: trajectories that got a task.
        finished: trajectories that were handed on.
        dropped: trajectories that the scheduler gave up, and reported.
        in_flight: trajectories that are neither finished nor dropped.
        resumed: trajectories with a turn that one worker began and another, or a later lease,
            ended.
        lost: trajectories that no list accounts for: always 0.
    """

    started: int
    finished: int
    dropped: int
    in_flight: int
    resumed: int
    lost: int
