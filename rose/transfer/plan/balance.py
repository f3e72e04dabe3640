"""Which of the ranks that hold a tile sends it: so that none has much more to send than others."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

_Candidates: TypeAlias = tuple[int, ...]


def contributors(candidates: Sequence[_Candidates], weights: Sequence[int]) -> list[int]:
    """Choose a rank for every tile; the same input has the same answer.

    Tiles with few candidates choose first, heavy ones before light ones, and take whoever has the
    least. That alone can be far from the best, as a tile may go to few ranks only. So, while the
    rank with the most can pass a tile on, over however many others, to one that has less by more
    than the heaviest tile, it does. Where it cannot, all ranks it could reach have nearly as much
    and nobody else could have sent their tiles, hence

        largest load <= the least that is possible + the heaviest tile.

    Args:
        candidates: the ranks that hold a tile, ascending, at least one for each tile.
        weights: what sending a tile costs, > 0.

    Returns:
        (n,) ranks, in the order of the tiles.
    """
    board = _Board(weights, {rank: 0 for ranks in set(candidates) for rank in ranks})
    order = range(len(candidates))
    for tile in sorted(order, key=lambda one: (len(candidates[one]), -weights[one], one)):
        ranks = candidates[tile]
        board.take(tile, ranks, min(ranks, key=board.loads.__getitem__))
    board.level()
    return [board.sender[tile] for tile in order]


@dataclass(slots=True)
class _Board:
    """Who sends what, for now.

    Args:
        weights: of the tiles.
        loads: of the ranks.
        sender: of the tiles.
        groups: tiles by candidates, and by who sends them.
        groups_of: the candidates that a rank is one of.
    """

    weights: Sequence[int]
    loads: dict[int, int]
    sender: dict[int, int] = field(default_factory=dict)
    groups: dict[_Candidates, dict[int, list[int]]] = field(default_factory=dict)
    groups_of: dict[int, list[_Candidates]] = field(default_factory=dict)

    def take(self, tile: int, ranks: _Candidates, rank: int) -> None:
        """Let `rank` send a tile."""
        if ranks not in self.groups:
            self.groups[ranks] = {one: [] for one in ranks}
            for one in ranks:
                self.groups_of.setdefault(one, []).append(ranks)
        self.groups[ranks][rank].append(tile)
        self.sender[tile] = rank
        self.loads[rank] += self.weights[tile]

    def level(self) -> None:
        """Pass tiles on until the promise of `contributors` holds.

        It ends: a rank that takes a tile stays under the largest load, and a tile that was passed
        on is one step farther from the rank with the most, from which steps never get fewer.
        """
        heaviest = max((self.weights[tile] for tile in self.sender), default=0)
        while self.loads:
            worst = max(self.loads, key=lambda rank: (self.loads[rank], -rank))
            step = self._step(worst, self.loads[worst] - heaviest)
            if step is None:
                return
            ranks, giver, taker = step
            tile = self.groups[ranks][giver].pop()
            self.loads[giver] -= self.weights[tile]
            self.take(tile, ranks, taker)

    def _step(self, worst: int, below: int) -> tuple[_Candidates, int, int] | None:
        """Find the nearest rank with a load under `below`, and who can pass it a tile."""
        if min(self.loads.values()) >= below:
            return None
        seen: set[_Candidates] = set()
        reached, pending = {worst}, deque([worst])
        while pending:
            giver = pending.popleft()
            for ranks in self.groups_of.get(giver, ()):
                if ranks in seen or not self.groups[ranks][giver]:
                    continue
                seen.add(ranks)
                for taker in ranks:
                    if taker in reached:
                        continue
                    if self.loads[taker] < below:
                        return ranks, giver, taker
                    reached.add(taker)
                    pending.append(taker)
        return None
