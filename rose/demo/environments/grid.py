"""A maze walked by saying N, E, S or W."""

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
        size: cells on a side.
        walls: cells nobody can enter.
        start: where the player begins.
        goal: where the player wants to be.
        steps_to_goal: fewest moves from each cell the goal can be reached from; walls on its way
            are walked around.
    """

    size: int
    walls: frozenset[Cell]
    start: Cell
    goal: Cell
    steps_to_goal: dict[Cell, int]

    def after(self, cell: Cell, move: str) -> Cell:
        """Return where a move leads: the same cell if a wall or the edge is in the way."""
        there = _moved(cell, move)
        return there if is_open(self.size, self.walls, there) else cell

    def open_moves(self, cell: Cell) -> str:
        """Return the letters of the moves that lead somewhere."""
        return "".join(move for move in MOVES if self.after(cell, move) != cell)


def draw_maze(seed: int, *, size: int, wall_share: float, steps_max: int) -> Maze:
    """Draw a maze whose goal is at most `steps_max` moves from its start.

    Walls are drawn first; then one after the other falls until there is a way that is short enough.
    That ends: with no wall left any cell is at most 2 (size - 1) moves from any other.

    Args:
        seed: >= 0.
        size: >= 2.
        wall_share: of the cells that are neither start nor goal, from 0 to 1.
        steps_max: >= 2 (size - 1).
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
        check(walls, "an empty maze has a way")
        walls.pop()


def is_open(size: int, walls: frozenset[Cell], cell: Cell) -> bool:
    """Say whether a cell can be entered."""
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
    """What came of one thing that the player said.

    Args:
        observation: what to read next; when the episode is over, how it ended.
        reward: for this step alone.
        is_over: nothing may be said after this.
        tool: name of the tool that was used, whose time has to be waited for; None for none.
    """

    observation: str
    reward: float
    is_over: bool
    tool: str | None


class GridWorld:
    """One maze at a time. Equal seeds and words give equal observations and rewards.

    The first of N, E, S, W in what was said is the move, text before it is thinking. The goal is
    worth 1 and ends the episode. With `shaping` each move adds `shaping` times the share of the way
    that it brought the player nearer, so that a policy that never arrives can still be told better
    from worse; over an episode that depends on where it ended alone.
    """

    name = "grid"

    def __init__(
        self, *, size: int = 4, turns_max: int = 8, wall_share: float = 0.2, shaping: float = 0.0
    ) -> None:
        """Set the rules.

        Args:
            size: cells on a side, from 2 to 32.
            turns_max: moves an episode may have, at least 2 (size - 1) so that every goal can be
                reached.
            wall_share: of the cells, from 0 to 1; walls that leave no way are taken away.
            shaping: what the whole way to the goal adds to the 1 for being there, >= 0.
        """
        self._size = size
        self._turns_max = turns_max
        self._wall_share = wall_share
        self._shaping = shaping
        self._maze: Maze | None = None
        self._at: Cell = (0, 0)
        self._turns = 0

    def reset(self, seed: int) -> str:
        """Enter the maze of `seed`."""
        self._maze = self.maze(seed)
        self._at = self._maze.start
        self._turns = 0
        return self._seen(self._maze, "go N, E, S or W")

    def step(self, said: str) -> Observed:
        """Make a move; what is none costs a turn and is told so.

        Raises:
            InvalidArgument: the episode is over, or none was begun.
        """
        if (maze := self._maze) is None:
            raise InvalidArgument("no maze was entered: call reset")
        before, self._turns = self._at, self._turns + 1
        found = _MOVE.search(said)
        self._at = maze.after(before, found[0]) if found else before
        is_there = self._at == maze.goal
        reward = float(is_there) + self._potential(maze, self._at) - self._potential(maze, before)
        if is_there or self._turns == self._turns_max:
            self._maze = None
        told = ("moved" if self._at != before else "a wall") if found else "say N, E, S or W"
        seen = self._seen(maze, "the goal" if is_there else told)
        return Observed(seen, reward, self._maze is None, tool="move" if found else None)

    def maze(self, seed: int) -> Maze:
        """Return the maze of a seed."""
        return draw_maze(
            seed, size=self._size, wall_share=self._wall_share, steps_max=self._turns_max
        )

    def _potential(self, maze: Maze, cell: Cell) -> float:
        """Return `shaping` times the share of the way that is behind; 0 at the start."""
        return self._shaping * (1.0 - maze.steps_to_goal[cell] / maze.steps_to_goal[maze.start])

    def _seen(self, maze: Maze, told: str) -> str:
        (x, y), (goal_x, goal_y) = self._at, maze.goal
        return f"at {x},{y} goal {goal_x},{goal_y} open {maze.open_moves(self._at)}: {told}"
