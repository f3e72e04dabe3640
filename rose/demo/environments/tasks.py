"""Which world a trajectory plays in: groups share a task, tasks are mixed by share."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.demo.environments.calculator import Calculator
from rose.demo.environments.environment import Environment
from rose.demo.environments.grid import GridWorld

# A small policy rarely finds a goal by chance: what it gains on the way is half of what there is.
_SHAPING: Final = 0.5
_GRID_SHARE: Final = 0.75  # of the groups that walk a maze; the others do sums


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
    environment: Environment


def task(seed: int, number: int, *, group_size: int) -> Task:
    """Return the task of trajectory `number`; depends on the arguments alone.

    Args:
        seed: of the run, >= 0.
        number: of the trajectory, >= 0.
        group_size: trajectories that share a task, > 0.
    """
    group = number // group_size
    random = np.random.default_rng((seed, group))
    is_grid = random.random() < _GRID_SHARE
    episode = int(random.integers(1 << 31))
    environment = GridWorld(shaping=_SHAPING) if is_grid else Calculator()
    return Task(number, group, episode, environment)
