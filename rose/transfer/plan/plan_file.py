"""Plans as JSON, read only if they are what their maps make of them.

It is not imported by `rose.transfer.plan`, as it needs msgspec, of the extra `wire`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import msgspec

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.plan.drafts import refine
from rose.transfer.plan.identity import layout_id, plan_id
from rose.transfer.plan.members import Holder, Relay, Replica, Source, check_names
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.planned import Landing, PlannedTile
from rose.transfer.plan.shard_file import FORMAT, check_named, decoded
from rose.transfer.plan.spec import Region

# Tensor, offset, shape, dtype, contributor, and the places of its landings and of its receivers.
_Tile: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...], str, int, int, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _PlanFile:
    """A plan; what many tiles have in common is said once."""

    layout_id: str
    plan_id: str
    tile_elements: int
    source: Source
    replicas: tuple[Replica, ...]
    relays: tuple[Relay, ...]
    landings: tuple[tuple[Landing, ...], ...]
    receivers: tuple[tuple[Holder, ...], ...]
    tiles: tuple[_Tile, ...]
    format: int = FORMAT


def plan_to_json(plan: Plan) -> bytes:
    """Return the plan as the content of a file."""
    landings = _numbered(tile.landings for tile in plan.tiles)
    receivers = _numbered(tile.receivers for tile in plan.tiles)
    tiles = (
        (
            tile.tensor,
            tile.region.offset,
            tile.region.shape,
            tile.dtype,
            tile.contributor,
            landings[tile.landings],
            receivers[tile.receivers],
        )
        for tile in plan.tiles
    )
    layout = plan.layout_id
    file = _PlanFile(
        layout_id=layout,
        plan_id=plan_id(layout, plan.tiles),
        tile_elements=plan.tile_elements,
        source=plan.sources,
        replicas=plan.replicas,
        relays=plan.relays,
        landings=tuple(landings),
        receivers=tuple(receivers),
        tiles=tuple(tiles),
    )
    return msgspec.json.encode(file)


def plan_from_json(content: bytes, *, what: str) -> Plan:
    """Read a plan, and refine its maps again to see that it is one.

    Raises:
        InvalidArgument: it is none, of another format, or too large.
        CorruptData: its tiles are not those of its maps, or its identity is another's.
    """
    file = decoded(_PlanFile, content, what)
    for shards in (file.source.shards, *(replica.shards for replica in file.replicas)):
        check_named(shards, what)
    check_names(file.replicas, file.relays)
    try:
        tiles = tuple(_tile(file, index, row) for index, row in enumerate(file.tiles))
    except IndexError:
        raise InvalidArgument(f"{what} is no plan: a tile names a way that is not listed") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{what} is no plan: {error}") from None
    plan = Plan(tiles, file.source, file.replicas, file.relays, file.tile_elements)
    _check_tiles(plan, what)
    layout = layout_id(tiles)
    if (layout, plan_id(layout, tiles)) != (file.layout_id, file.plan_id):
        raise CorruptData(f"{what} is not the plan that its identity names")
    return plan


def _numbered(ways: Iterable[T]) -> dict[T, int]:
    """Return each of some things once, and its place."""
    return {way: place for place, way in enumerate(dict.fromkeys(ways))}


def _tile(file: _PlanFile, index: int, row: _Tile) -> PlannedTile:
    tensor, offset, shape, dtype, contributor, landings, receivers = row
    if landings < 0 or receivers < 0:
        raise IndexError
    return PlannedTile(
        index,
        tensor,
        Region(offset, shape),
        dtype,
        contributor,
        file.landings[landings],
        file.receivers[receivers],
    )


def _check_tiles(plan: Plan, what: str) -> None:
    drafts = refine(plan.sources, plan.replicas, tile_elements=plan.tile_elements).drafts
    landing_at = {Landing(relay.cluster, relay.name) for relay in plan.relays}
    if len(drafts) != len(plan.tiles):
        raise CorruptData(f"{what} has {len(plan.tiles)} tiles, and its maps {len(drafts)}")
    for tile, draft in zip(plan.tiles, drafts, strict=True):
        is_same = (tile.tensor, tile.region, tile.dtype, tile.receivers) == (
            draft.tensor,
            draft.region,
            draft.dtype,
            draft.receivers,
        )
        if not is_same or tile.contributor not in draft.contributors:
            raise CorruptData(f"{what} has a tile {tile.index} that its maps do not have")
        if not landing_at.issuperset(tile.landings):
            raise CorruptData(f"{what} has a tile {tile.index} that lands on no relay of the plan")
