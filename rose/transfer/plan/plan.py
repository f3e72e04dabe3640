"""The plan: all tiles, the route of each tile, and the tile's place in the memory of each rank."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rose.errors import InvalidArgument
from rose.transfer.plan.drafts import refine
from rose.transfer.plan.planned import PlannedTile, layout_id, plan_id
from rose.transfer.plan.regions import contains, moved
from rose.transfer.plan.routes import routed
from rose.transfer.plan.spec import (
    Holder,
    Piece,
    Places,
    RelayNode,
    Replica,
    ShardMap,
    SourceRanks,
)
from rose.transfer.tiles import TILE_ELEMENTS, Tiles


@dataclass(frozen=True, slots=True)
class Plan:
    """The routes of all tiles: the rank that sends each tile, and the ranks that receive it.

    Args:
        tiles: tiles of all elements that the source holds. Every rank holds a tile whole or not at
            all.
        sources: the trainer's ranks, with canonical tensor names.
        replicas: the engines' ranks, with the same tensor names.
        tile_elements: largest number of elements of a tile.
    """

    tiles: tuple[PlannedTile, ...]
    sources: SourceRanks
    replicas: tuple[Replica, ...]
    relays: tuple[RelayNode, ...]
    tile_elements: int = TILE_ELEMENTS

    @property
    def layout_id(self) -> str:
        """Return the layout id, 64 hex digits; tile digests of equal layouts are comparable.

        Like every property of a plan, it is computed at each access.
        """
        return layout_id(self.tiles)

    @property
    def plan_id(self) -> str:
        """Return the plan id, 64 hex digits; plans with equal ids are interchangeable."""
        return plan_id(self.layout_id, self.tiles)

    @property
    def cut(self) -> Tiles:
        """Return the tiles for publishers and receivers."""
        counts = [tile.count for tile in self.tiles]
        return Tiles(counts, [tile.width for tile in self.tiles], self.layout_id)

    def tiles_for(self, replica: str, rank: int) -> tuple[int, ...]:
        """Return the tiles that a rank receives, ascending.

        Raises:
            InvalidArgument: the plan has no such replica.
        """
        holder = Holder(self._replica(replica).cluster, replica, rank)
        return tuple(tile.index for tile in self.tiles if holder in tile.receivers)

    def contributes(self, rank: int) -> tuple[int, ...]:
        """Return the tiles that a source rank sends, ascending."""
        return tuple(tile.index for tile in self.tiles if tile.contributor == rank)

    def places(self, replica: str, rank: int) -> Places:
        """Return all places of each tile that a rank receives, in the rank's memory.

        Raises:
            InvalidArgument: the plan has no such replica.
        """
        wanted = (self.tiles[tile] for tile in self.tiles_for(replica, rank))
        return _places(self._replica(replica).shards, rank, wanted)

    def sent_from(self, rank: int) -> Places:
        """Return the place of each tile that a source rank sends, in the rank's memory."""
        sent = (tile for tile in self.tiles if tile.contributor == rank)
        return {tile: row[:1] for tile, row in _places(self.sources.shards, rank, sent).items()}

    def _replica(self, name: str) -> Replica:
        for replica in self.replicas:
            if replica.name == name:
                return replica
        raise InvalidArgument(f"the plan has no replica {name}")


def make_plan(
    source: SourceRanks,
    replicas: Iterable[Replica],
    relays: Iterable[RelayNode] = (),
    *,
    tile_elements: int = TILE_ELEMENTS,
) -> Plan:
    """Make a plan; the same members give the same plan.

    Raises:
        InvalidArgument: two members share a name, or `refine` refuses the maps.
    """
    members, nodes = tuple(replicas), tuple(relays)
    names = Counter([*(one.name for one in members), *(one.name for one in nodes)])
    if twice := [name for name, times in names.items() if times > 1]:
        raise InvalidArgument(f"two replicas or relays have the name {twice[0]}: names must differ")
    one, fitted, drafts = refine(source, members, tile_elements=tile_elements)
    return Plan(routed(drafts, nodes), one, fitted, nodes, tile_elements)


def _places(shards: ShardMap, rank: int, tiles: Iterable[PlannedTile]) -> Places:
    pieces: dict[str, list[Piece]] = {}
    for piece in shards.pieces:
        if piece.rank == rank:
            pieces.setdefault(piece.tensor, []).append(piece)
    return {
        tile.index: tuple(
            (moved(one.view, one.region, tile.region), tile.region.shape)
            for one in pieces[tile.tensor]
            if contains(one.region, tile.region)
        )
        for tile in tiles
    }
