"""Which maze a trajectory walks: trajectories of a group share it."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.demo.environments.grid import GridWorld

# A small policy rarely finds a goal by chance: what it gains on the way is half of what there is.
_SHAPING: Final = 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """What one trajectory has to do.

    Args:
        number: of the trajectory.
        group: trajectories of one group play the same episode and are compared with each other.
        seed: of the episode; `environment.reset` takes it.
        environment: its own, nobody else plays in it.
    """

    number: int
    group: int
    seed: int
    environment: GridWorld


def task(seed: int, number: int, *, group_size: int) -> Task:
    """Return the task of trajectory `number`; depends on the arguments alone.

    Args:
        seed: of the run, >= 0.
        number: of the trajectory, >= 0.
        group_size: trajectories that share a task, > 0.
    """
    group = number // group_size
    episode = int(np.random.default_rng((seed, group)).integers(1 << 31))
    return Task(number, group, episode, GridWorld(shaping=_SHAPING))
