"""Shard maps and plans as JSON.

A plan is stored as the maps of all members, from which the same plan is made again.

`rose.transfer.plan` does not import this module, which needs msgspec of the extra `wire`.
"""

from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.plan.plan import Plan, make_plan
from rose.transfer.plan.regions import check_pieces
from rose.transfer.plan.spec import Places, RelayNode, Replica, ShardMap, SourceRanks
from rose.transfer.plan.storage import Storage
from rose.transfer.tiles import Tiles

FORMAT: Final = 1
PLAN_FORMAT: Final = 3
# A map of 256 ranks with flat shards of 120 billion parameters takes 40 MiB, and its plan takes
# 100 MiB.
FILE_BYTES_MAX: Final = 512 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShardFile:
    """The shard map of one member of a transfer.

    Args:
        name: name of a replica; a source needs none.
        cluster: cluster of the ranks; None if the reader of the file supplies it.
        shards: pieces of its ranks.
        storages: (rank, parameter, elements) of every storage; None if unknown.
        buffers: parameters that are in no checkpoint.
        ties: maps each alias of a tied tensor to the tensor's canonical name; only for a source.
        converts: pairs (dtype on the wire, dtype in the engine) that a replica converts by itself.
        format: format number of the file.
    """

    shards: ShardMap
    name: str | None = None
    cluster: str | None = None
    storages: tuple[tuple[int, str, int], ...] | None = None
    buffers: tuple[str, ...] = ()
    ties: dict[str, str] = field(default_factory=dict)
    converts: frozenset[tuple[str, str]] = frozenset()
    format: int = FORMAT

    @property
    def sizes(self) -> dict[Storage, int] | None:
        """Return the number of elements of every storage, for `check_coverage`."""
        if self.storages is None:
            return None
        return {(rank, parameter): elements for rank, parameter, elements in self.storages}


@dataclass(frozen=True, slots=True)
class _Envelope:
    """The field that every format has."""

    format: int


def shards_to_json(file: ShardFile) -> bytes:
    """Return the file's content."""
    return msgspec.json.encode(file)


def shards_from_json(content: bytes, *, what: str) -> ShardFile:
    """Read a shard map.

    Args:
        content: content of the file.
        what: name of the file, for messages.

    Raises:
        InvalidArgument: the content is not a shard map, has another format, or is too large.
    """
    file = _decoded(ShardFile, content, what)
    _check_named(file.shards, what)
    if file.storages is not None:
        if len({storage[:2] for storage in file.storages}) < len(file.storages):
            raise InvalidArgument(f"{what} lists a storage twice")
        if any(elements < 0 for _, _, elements in file.storages):
            raise InvalidArgument(f"{what} lists a storage of a negative size")
    return file


def _decoded(kind: type[T], content: bytes, what: str, *, reads: int = FORMAT) -> T:
    """Decode the content of a file.

    Raises:
        InvalidArgument: the content is not of this kind, has another format, or is too large.
    """
    if len(content) > FILE_BYTES_MAX:
        raise InvalidArgument(
            f"{what} must have at most {FILE_BYTES_MAX >> 20} MiB, got {len(content)} bytes"
        )
    try:
        version = msgspec.json.decode(content, type=_Envelope).format
        if version != reads:
            raise InvalidArgument(f"{what} has format {version}; this rose reads {reads}")
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidArgument(f"{what} cannot be read: {error}") from None


def _check_named(shards: ShardMap, what: str) -> None:
    """Refuse a map as `check_pieces` does, with the file's name in the message."""
    try:
        check_pieces(shards)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None


@dataclass(frozen=True, slots=True)
class RankFile:
    """What one rank needs of a plan: all tiles, and the places of the rank's tiles in its memory.

    Args:
        counts: number of elements of each tile.
        widths: bits per element of each tile.
        layout: layout id.
        places: places by tile.
        format: format number of the file.
    """

    counts: tuple[int, ...]
    widths: tuple[int, ...]
    layout: str
    places: Places
    format: int = FORMAT

    @property
    def cut(self) -> Tiles:
        """Return the tiles for publishers and receivers."""
        return Tiles(self.counts, self.widths, self.layout)


def places_to_json(plan: Plan, places: Places) -> bytes:
    """Return a rank's part of a plan as the content of a file."""
    counts = tuple(tile.count for tile in plan.tiles)
    widths = tuple(tile.width for tile in plan.tiles)
    return msgspec.json.encode(RankFile(counts, widths, plan.layout_id, places))


def places_from_json(content: bytes, *, what: str) -> RankFile:
    """Read a rank's part of a plan.

    Raises:
        InvalidArgument: the content is not such a file, has another format, or is too large.
    """
    return _decoded(RankFile, content, what)


@dataclass(frozen=True, slots=True)
class _PlanFile:
    plan_id: str
    tile_elements: int
    source: SourceRanks
    replicas: tuple[Replica, ...]
    relays: tuple[RelayNode, ...]
    format: int = PLAN_FORMAT


def plan_to_json(plan: Plan) -> bytes:
    """Return the plan as the content of a file."""
    members = (plan.sources, plan.replicas, plan.relays)
    return msgspec.json.encode(_PlanFile(plan.plan_id, plan.tile_elements, *members))


def plan_from_json(content: bytes, *, what: str) -> Plan:
    """Read a plan: make it again from the maps of its members.

    Raises:
        InvalidArgument: the content is not a plan, has another format, or is too large.
        CorruptData: the plan made from the maps has another `plan_id` than the file states.
    """
    file = _decoded(_PlanFile, content, what, reads=PLAN_FORMAT)
    for shards in (file.source.shards, *(replica.shards for replica in file.replicas)):
        _check_named(shards, what)
    try:
        plan = make_plan(file.source, file.replicas, file.relays, tile_elements=file.tile_elements)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what} is not a plan: {error}") from None
    if plan.plan_id != file.plan_id:
        raise CorruptData(
            f"the maps in {what} make a plan with another plan_id than the file states"
        )
    return plan
