"""Plan again when somebody comes or goes: what is not affected stays where it was."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rose.errors import InvalidArgument
from rose.transfer.plan.drafts import Draft, Refinement, refine
from rose.transfer.plan.members import Relay, Replica, Source, check_names, names_of
from rose.transfer.plan.plan import NOTHING_EXPECTED, Expected, Plan
from rose.transfer.plan.planned import PlannedTile
from rose.transfer.plan.regions import RegionIndex
from rose.transfer.plan.routes import routed
from rose.transfer.plan.spec import ShardMap
from rose.transfer.plan.ties import renamed


@dataclass(frozen=True, slots=True)
class Replanned:
    """A plan, and what is new in it.

    Args:
        plan: the plan.
        rerouted: tiles that both plans have, and that have another way now; by their new index.
        origins: tiles that the old plan does not have, by index, and the old tiles that have parts
            of them; empty if the layout is the same, so that no receiver needs new digests.
    """

    plan: Plan
    rerouted: tuple[int, ...]
    origins: Mapping[int, tuple[int, ...]]


def replan(
    plan: Plan,
    *,
    joined: Iterable[Replica | Relay | ShardMap] = (),
    left: Collection[str | int] = (),
    expected: Expected = NOTHING_EXPECTED,
) -> Replanned:
    """Plan for other members: the tiles of a plan from nothing, with few new ways.

    A tile keeps its contributor while that one holds it, also where somebody who joined has less to
    send. It keeps its relay unless that one left or one that joined wins it.

    Args:
        plan: the plan before.
        joined: replicas, relays, or what new ranks of the source hold.
        left: names of replicas and relays, and ranks of the source.
        expected: bytes of an update of a tile, where something is known.

    Raises:
        InvalidArgument: who left was not there, who joined is there already, or the source that
            remains does not hold everything.
    """
    arrived, gone = tuple(joined), frozenset(left)
    _check_left(plan, gone)
    refinement, relays = _members(plan, arrived, gone)
    old = {(tile.tensor, tile.region): tile for tile in plan.tiles}
    settled = {key: tile.contributor for key, tile in old.items()}
    tiles = routed(refinement.drafts, relays, expected=expected, settled=settled)
    rerouted, fresh = [], []
    for tile in tiles:
        before = old.get((tile.tensor, tile.region))
        if before is None:
            fresh.append(tile)
        elif _way(before) != _way(tile):
            rerouted.append(tile.index)
    made = Plan(tiles, refinement.source, refinement.replicas, relays, plan.tile_elements)
    return Replanned(made, tuple(rerouted), _origins(plan, fresh))


def _members(
    plan: Plan, joined: tuple[Replica | Relay | ShardMap, ...], left: frozenset[str | int]
) -> tuple[Refinement, tuple[Relay, ...]]:
    replicas = [one for one in plan.replicas if one.name not in left]
    replicas += [one for one in joined if isinstance(one, Replica)]
    relays = [one for one in plan.relays if one.name not in left]
    relays += [one for one in joined if isinstance(one, Relay)]
    check_names(tuple(replicas), tuple(relays))
    shards = _source(plan.sources, joined, left)
    if shards is plan.sources.shards and tuple(replicas) == plan.replicas:
        return _same(plan), tuple(relays)
    source = Source(plan.sources.cluster, shards, plan.sources.ties)
    return refine(source, replicas, tile_elements=plan.tile_elements), tuple(relays)


def _source(
    source: Source,
    joined: Iterable[Replica | Relay | ShardMap],
    left: Collection[str | int],
) -> ShardMap:
    """Return what the source holds now; the same object where nothing changed."""
    shards = source.shards
    arrived = [renamed(one, source.ties) for one in joined if isinstance(one, ShardMap)]
    present = set(shards.ranks)
    for more in arrived:
        if twice := present.intersection(more.ranks):
            raise InvalidArgument(f"rank {min(twice)} of the source is there already")
        present.update(more.ranks)
        for name, spec in more.tensors.items():
            if shards.tensors.get(name) != spec:
                raise InvalidArgument(f"who joins the source has another {name} than the source")
    if not arrived and present.isdisjoint(left):
        return shards
    pieces = (piece for piece in shards.pieces if piece.rank not in left)
    more_pieces = (piece for more in arrived for piece in more.pieces)
    return ShardMap(shards.tensors, (*pieces, *more_pieces), shards.computed)


def _same(plan: Plan) -> Refinement:
    """Return the refinement that a plan has, whose tiles all stay with their contributors."""
    drafts = (
        Draft(tile.tensor, tile.region, tile.dtype, (tile.contributor,), tile.receivers)
        for tile in plan.tiles
    )
    return Refinement(plan.sources, plan.replicas, tuple(drafts))


def _check_left(plan: Plan, left: Collection[str | int]) -> None:
    present = {*names_of(plan.replicas, plan.relays), *plan.sources.shards.ranks}
    for one in left:
        if one not in present:
            what = f"rank {one} of the source" if isinstance(one, int) else one
            raise InvalidArgument(f"{what} cannot leave, as the plan does not have it")


def _way(tile: PlannedTile) -> tuple[object, ...]:
    return tile.contributor, tile.landings, tile.receivers


def _origins(plan: Plan, fresh: Sequence[PlannedTile]) -> dict[int, tuple[int, ...]]:
    before: dict[str, list[PlannedTile]] = {tile.tensor: [] for tile in fresh}
    for tile in plan.tiles:
        if tile.tensor in before:
            before[tile.tensor].append(tile)
    indices = {name: RegionIndex([one.region for one in held]) for name, held in before.items()}
    origins: dict[int, tuple[int, ...]] = {}
    for tile in fresh:
        places = indices[tile.tensor].meeting(tile.region)
        origins[tile.index] = tuple(sorted(before[tile.tensor][place].index for place in places))
    return origins
