"""A maze in which the player moves by the letters N, E, S and W."""

import re
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.errors import InvalidArgument, check

Cell = tuple[int, int]  # (x, y), y grows to the south

MOVES: Final[dict[str, Cell]] = {"N": (0, -1), "E": (1, 0), "S": (0, 1), "W": (-1, 0)}


@dataclass(frozen=True, slots=True)
class Maze:
    """A square of cells, some of them walls.

    Args:
        size: cells per side.
        walls: blocked cells.
        start: the player's first cell.
        goal: cell that the player must reach.
        steps_to_goal: moves on the shortest path to the goal, for each cell that can reach it.
    """

    size: int
    walls: frozenset[Cell]
    start: Cell
    goal: Cell
    steps_to_goal: dict[Cell, int]

    def after(self, cell: Cell, move: str) -> Cell:
        """Return the cell after a move; a wall or the edge blocks the move."""
        there = _moved(cell, move)
        return there if is_open(self.size, self.walls, there) else cell

    def open_moves(self, cell: Cell) -> str:
        """Return the letters of the moves that are not blocked."""
        return "".join(move for move in MOVES if self.after(cell, move) != cell)


def draw_maze(seed: int, *, size: int, wall_share: float, steps_max: int) -> Maze:
    """Draw a maze whose goal is at most `steps_max` moves from its start.

    Walls are drawn first, then removed one by one until the path is short enough. This ends:
    without walls, any two cells are at most 2 (size - 1) moves apart.

    Args:
        seed: seed of the maze, >= 0.
        size: cells per side, >= 2.
        wall_share: share of walls among cells other than start and goal, from 0 to 1.
        steps_max: most moves from start to goal, >= 2 (size - 1).
    """
    random = np.random.default_rng(seed)
    cells = [(x, y) for y in range(size) for x in range(size)]
    order = [cells[place] for place in random.permutation(len(cells))]
    start, goal, *others = order
    walls = others[: round(wall_share * len(others))]
    while True:
        steps = _steps_from(goal, size, frozenset(walls))
        if steps.get(start, steps_max + 1) <= steps_max:
            return Maze(size, frozenset(walls), start, goal, steps)
        check(walls, "a maze without walls must have a path from start to goal")
        walls.pop()


def is_open(size: int, walls: frozenset[Cell], cell: Cell) -> bool:
    """Return whether the player can enter a cell."""
    return 0 <= cell[0] < size and 0 <= cell[1] < size and cell not in walls


def _moved(cell: Cell, move: str) -> Cell:
    return cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]


def _steps_from(goal: Cell, size: int, walls: frozenset[Cell]) -> dict[Cell, int]:
    steps = {goal: 0}
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for move in MOVES:
            there = _moved(cell, move)
            if there not in steps and is_open(size, walls, there):
                steps[there] = steps[cell] + 1
                queue.append(there)
    return steps


_MOVE: Final = re.compile("[NESW]")


@dataclass(frozen=True, slots=True)
class Observed:
    """Result of one step of the player.

    Args:
        observation: text with the position, the goal, the open moves and the outcome of the step.
        reward: reward of this step alone.
        is_over: whether the episode has ended.
        tool: name of the tool that the step used, None without a tool; the caller waits as long as
            the tool takes.
    """

    observation: str
    reward: float
    is_over: bool
    tool: str | None


class GridWorld:
    """Plays one maze at a time. Equal seeds and inputs give equal observations and rewards.

    The first of N, E, S, W in the player's text is the move; the text before counts as thinking.
    The goal is worth 1 and ends the episode. Each move adds `shaping` times the share of the path
    that the move covered, so that policies that never reach the goal can be ranked. The sum of
    these rewards over an episode depends only on the player's last cell.
    """

    name = "grid"

    def __init__(
        self, *, size: int = 4, turns_max: int = 8, wall_share: float = 0.2, shaping: float = 0.0
    ) -> None:
        """Set the rules.

        Args:
            size: cells per side, from 2 to 32.
            turns_max: maximum moves of an episode, at least 2 (size - 1) so that every goal can be
                reached.
            wall_share: share of walls, from 0 to 1; walls that block the path are removed.
            shaping: extra reward for the whole path to the goal, >= 0.
        """
        self._size = size
        self._turns_max = turns_max
        self._wall_share = wall_share
        self._shaping = shaping
        self._maze: Maze | None = None
        self._at: Cell = (0, 0)
        self._turns = 0

    def reset(self, seed: int) -> str:
        """Enter the maze of `seed`; return the first observation."""
        self._maze = self.maze(seed)
        self._at = self._maze.start
        self._turns = 0
        return self._seen(self._maze, "go N, E, S or W")

    def step(self, action: str) -> Observed:
        """Make a move; text without a move costs a turn.

        Raises:
            InvalidArgument: no episode is running.
        """
        if (maze := self._maze) is None:
            raise InvalidArgument("no episode is running: call reset before step")
        before, self._turns = self._at, self._turns + 1
        found = _MOVE.search(action)
        self._at = maze.after(before, found[0]) if found else before
        is_there = self._at == maze.goal
        reward = float(is_there) + self._potential(maze, self._at) - self._potential(maze, before)
        if is_there or self._turns == self._turns_max:
            self._maze = None
        outcome = ("moved" if self._at != before else "a wall") if found else "say N, E, S or W"
        seen = self._seen(maze, "the goal" if is_there else outcome)
        return Observed(seen, reward, self._maze is None, tool="move" if found else None)

    def maze(self, seed: int) -> Maze:
        """Return the maze of a seed."""
        return draw_maze(
            seed, size=self._size, wall_share=self._wall_share, steps_max=self._turns_max
        )

    def _potential(self, maze: Maze, cell: Cell) -> float:
        """Return `shaping` times the covered share of the path; 0 at the start."""
        return self._shaping * (1.0 - maze.steps_to_goal[cell] / maze.steps_to_goal[maze.start])

    def _seen(self, maze: Maze, outcome: str) -> str:
        (x, y), (goal_x, goal_y) = self._at, maze.goal
        return f"at {x},{y} goal {goal_x},{goal_y} open {maze.open_moves(self._at)}: {outcome}"
