"""Tiles without a route: regions divided until each rank holds each tile whole or not at all."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from rose.errors import InvalidArgument
from rose.transfer.plan.coverage import check_coverage, renamed
from rose.transfer.plan.planned import width_of
from rose.transfer.plan.refinement import cells, slabs
from rose.transfer.plan.regions import described
from rose.transfer.plan.spec import Holder, Region, Replica, ShardMap, SourceRanks
from rose.transfer.tiles import TILE_BYTES, TILE_ELEMENTS

T = TypeVar("T", int, Holder)


@dataclass(frozen=True, slots=True)
class Draft:
    """A tile that each rank holds whole or not at all.

    Args:
        tensor: canonical name of the tensor.
        region: its box in the tensor.
        dtype: dtype on the wire.
        contributors: source ranks that hold it, ascending, at least one.
        receivers: ranks that need it, ascending; may be empty.
    """

    tensor: str
    region: Region
    dtype: str
    contributors: tuple[int, ...]
    receivers: tuple[Holder, ...]


def refine(
    source: SourceRanks, replicas: Iterable[Replica], *, tile_elements: int = TILE_ELEMENTS
) -> tuple[SourceRanks, tuple[Replica, ...], tuple[Draft, ...]]:
    """Divide the source's tensors into tiles that each rank holds whole or not at all.

    Args:
        source: ranks of the trainer; together they must hold every element of all tensors that are
            not computed.
        replicas: ranks of the engines, with any layouts.
        tile_elements: largest number of elements of a tile; `TILE_BYTES` limits a tile too.

    Returns:
        The source with one name per tied tensor, the replicas with the source's names, and the
        tiles, ordered by tensor name, then offset.

    Raises:
        InvalidArgument: a map is unsound; a replica needs a tensor, shape, part or dtype that the
            source lacks, or has one storage for two tensors of the source; or a dtype cannot be
            sent.
    """
    if not 0 < tile_elements <= TILE_ELEMENTS:
        raise InvalidArgument(f"tile_elements {tile_elements} must be from 1 to {TILE_ELEMENTS}")
    one = _under_one_name(source)
    fitted = tuple(_fitted(replica, one) for replica in replicas)
    return one, fitted, tuple(_drafts(one, fitted, tile_elements))


def _under_one_name(source: SourceRanks) -> SourceRanks:
    tensors = source.shards.tensors
    for name, goes_by in source.ties.items():
        here, there = tensors.get(name), tensors.get(goes_by)
        if here and there and (here.shape, here.dtype) != (there.shape, there.dtype):
            raise InvalidArgument(f"{name} and {goes_by} are tied, but differ in shape or dtype")
    coverage = check_coverage(renamed(source.shards, source.ties), is_source=True)
    declared = {name: coverage.ties.get(by, by) for name, by in source.ties.items()}
    return SourceRanks(source.cluster, coverage.shards, {**coverage.ties, **declared})


def _fitted(replica: Replica, source: SourceRanks) -> Replica:
    """Return a replica with the source's names.

    Raises:
        InvalidArgument: the replica holds something that the source lacks.
    """
    tensors = source.shards.tensors
    coverage = check_coverage(renamed(replica.shards, source.ties), known=tensors)
    for name, goes_by in coverage.ties.items():
        if name in tensors:
            raise InvalidArgument(
                f"{name} and {goes_by} are one tensor at replica {replica.name} and two at the "
                f"source"
            )
    held = {piece.tensor for piece in coverage.shards.pieces}
    for name in coverage.shards.tensors:
        if name in held:
            _check_fit(name, coverage.shards, replica, source)
    return Replica(replica.name, replica.cluster, coverage.shards, replica.converts)


def _check_fit(name: str, shards: ShardMap, replica: Replica, source: SourceRanks) -> None:
    wanted, given = shards.tensors[name], source.shards.tensors.get(name)
    if given is None:
        raise InvalidArgument(
            f"replica {replica.name} holds {name}, which the source does not have"
        )
    if wanted.shape != given.shape:
        raise InvalidArgument(
            f"{name} has the shape {given.shape} at the source and {wanted.shape} at replica "
            f"{replica.name}"
        )
    if wanted.dtype != given.dtype and (given.dtype, wanted.dtype) not in replica.converts:
        raise InvalidArgument(
            f"{name} has the dtype {given.dtype} at the source and {wanted.dtype} at replica "
            f"{replica.name}, which declares no conversion from {given.dtype} to {wanted.dtype}"
        )


def _drafts(
    source: SourceRanks, replicas: Sequence[Replica], tile_elements: int
) -> Iterator[Draft]:
    ranks_of, holders_of = _ranks_of(source.shards), _holders_of(replicas)
    known = cache(cells)  # the layers of a model repeat
    cut: dict[tuple[Region, int], tuple[Region, ...]] = {}
    for name, spec in sorted(source.shards.tensors.items()):
        giving, taking = ranks_of.get(name, {}), holders_of.get(name, {})
        regions = tuple(sorted({*giving, *taking}))
        most = min(tile_elements, 8 * TILE_BYTES // width_of(name, spec.dtype))
        for cell in known(spec.shape, regions):
            held_by = [regions[place] for place in cell.held_by]
            ranks = _all(giving, held_by)
            receivers = _all(taking, held_by)
            if receivers and not ranks:
                raise InvalidArgument(
                    f"replica {receivers[0].replica} needs {name}{described(cell.region)}, which "
                    f"no rank of the source holds{_reason(source.shards, name)}"
                )
            if not ranks:  # computed, and no replica needs it
                continue
            if (cell.region, most) not in cut:
                cut[cell.region, most] = tuple(slabs(cell.region, most))
            for region in cut[cell.region, most]:
                yield Draft(name, region, spec.dtype, ranks, receivers)


def _all(members: Mapping[Region, set[T]], regions: Iterable[Region]) -> tuple[T, ...]:
    """Return the holders of any of these regions, ascending."""
    found: set[T] = set()
    return tuple(sorted(found.union(*(members.get(region, ()) for region in regions))))


def _holders_of(replicas: Iterable[Replica]) -> dict[str, dict[Region, set[Holder]]]:
    """Return the holders in all replicas, by tensor and region."""
    found: dict[str, dict[Region, set[Holder]]] = {}
    for replica in replicas:
        holders = {one: Holder(replica.cluster, replica.name, one) for one in replica.shards.ranks}
        for piece in replica.shards.pieces:
            of_tensor = found.setdefault(piece.tensor, {})
            of_tensor.setdefault(piece.region, set()).add(holders[piece.rank])
    return found


def _ranks_of(shards: ShardMap) -> dict[str, dict[Region, set[int]]]:
    """Return the ranks that hold each region, by tensor."""
    found: dict[str, dict[Region, set[int]]] = {}
    for piece in shards.pieces:
        found.setdefault(piece.tensor, {}).setdefault(piece.region, set()).add(piece.rank)
    return found


def _reason(shards: ShardMap, name: str) -> str:
    return f": it is computed ({shards.computed[name]})" if name in shards.computed else ""
