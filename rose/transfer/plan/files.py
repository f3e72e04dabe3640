"""Shard maps and plans as JSON: what one party writes, another can check and read.

Of a plan, the maps of all members are kept, from which the same plan is made again.

It is not imported by `rose.transfer.plan`, as it needs msgspec, of the extra `wire`.
"""

from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.plan.plan import Plan, make_plan
from rose.transfer.plan.regions import check_pieces
from rose.transfer.plan.spec import Relay, Replica, ShardMap, Source
from rose.transfer.plan.storage import Storage

FORMAT: Final = 1
PLAN_FORMAT: Final = 3
# A map of 256 ranks with flat shards of 120 B parameters has 40 MiB, its plan 100 MiB.
FILE_BYTES_MAX: Final = 512 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShardFile:
    """What a member of a transfer says of itself.

    Args:
        name: of a replica; a source needs none.
        cluster: where it is; whoever reads the file says so if it does not.
        shards: who of it holds what.
        storages: (rank, parameter, elements) of every storage; None if nobody knows.
        buffers: parameters that no checkpoint has.
        ties: of a source: names of copies, and the names they go by.
        converts: of a replica: (what crosses, what it keeps).
        format: of the file.
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
        """Return the elements of every storage, as `check_coverage` takes them."""
        if self.storages is None:
            return None
        return {(rank, parameter): elements for rank, parameter, elements in self.storages}


@dataclass(frozen=True, slots=True)
class _Envelope:
    """What every file has, whatever its version."""

    format: int


def shards_to_json(file: ShardFile) -> bytes:
    """Return the file's content."""
    return msgspec.json.encode(file)


def shards_from_json(content: bytes, *, what: str) -> ShardFile:
    """Read a shard map.

    Args:
        content: of the file.
        what: it is called in sentences.

    Raises:
        InvalidArgument: it is none, of another format, or too large.
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
    """Read the content of a file as what it should be.

    Raises:
        InvalidArgument: it is something else, of another format, or too large.
    """
    if len(content) > FILE_BYTES_MAX:
        raise InvalidArgument(f"{what} has more than {FILE_BYTES_MAX >> 20} MiB")
    try:
        version = msgspec.json.decode(content, type=_Envelope).format
        if version != reads:
            raise InvalidArgument(f"{what} has format {version}; this rose reads {reads}")
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidArgument(f"{what} cannot be read: {error}") from None


def _check_named(shards: ShardMap, what: str) -> None:
    """Refuse a map as `check_pieces` does, in sentences that name the file."""
    try:
        check_pieces(shards)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None


@dataclass(frozen=True, slots=True)
class _PlanFile:
    plan_id: str
    tile_elements: int
    source: Source
    replicas: tuple[Replica, ...]
    relays: tuple[Relay, ...]
    format: int = PLAN_FORMAT


def plan_to_json(plan: Plan) -> bytes:
    """Return the plan as the content of a file."""
    members = (plan.sources, plan.replicas, plan.relays)
    return msgspec.json.encode(_PlanFile(plan.plan_id, plan.tile_elements, *members))


def plan_from_json(content: bytes, *, what: str) -> Plan:
    """Read a plan: make it of its maps again.

    Raises:
        InvalidArgument: it is none, of another format, or too large.
        CorruptData: its maps make another plan than its identity names.
    """
    file = _decoded(_PlanFile, content, what, reads=PLAN_FORMAT)
    for shards in (file.source.shards, *(replica.shards for replica in file.replicas)):
        _check_named(shards, what)
    try:
        plan = make_plan(file.source, file.replicas, file.relays, tile_elements=file.tile_elements)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what} is no plan: {error}") from None
    if plan.plan_id != file.plan_id:
        raise CorruptData(f"{what} is not the plan that its identity names")
    return plan
