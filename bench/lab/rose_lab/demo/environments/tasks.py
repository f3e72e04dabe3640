"""Assignment of mazes to trajectories; a group shares one maze."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rose_lab.demo.environments.grid import GridWorld

# A small policy rarely reaches a goal by chance, so progress earns up to half the goal's reward.
_SHAPING: Final = 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """Task of one trajectory.

    Args:
        number: trajectory number.
        group: group number; a group's trajectories play the same episode and are compared.
        seed: episode seed for `environment.reset`.
        environment: instance that only this trajectory uses.
    """

    number: int
    group: int
    seed: int
    environment: GridWorld


def task(seed: int, number: int, *, group_size: int) -> Task:
    """Return the task of trajectory `number`, a pure function of the arguments.

    Args:
        seed: seed of the run, >= 0.
        number: trajectory number, >= 0.
        group_size: trajectories per task, > 0.
    """
    group = number // group_size
    episode = int(np.random.default_rng((seed, group)).integers(1 << 31))
    return Task(number, group, episode, GridWorld(shaping=_SHAPING))
