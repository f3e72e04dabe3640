"""Mazes that have a way through, drawn from a seed."""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.errors import check

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
