"""Whether a shard map says where everything is: of the checkpoint, and of the memory of ranks."""

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from rose.errors import InvalidArgument
from rose.transfer.plan.refinement import cells
from rose.transfer.plan.regions import check_pieces, described
from rose.transfer.plan.spec import LocalView, Piece, Region, ShardMap, TensorSpec
from rose.transfer.plan.storage import Storage, described_elements, uncovered_elements


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a shard map covers.

    Args:
        shards: the map with tied tensors under one name, and no piece twice.
        ties: each other name of a tensor, and the name that it goes by.
        elements: of all tensors.
        held: of those, how many at least one rank holds.
        unheld: by tensor, how many no rank holds.
        storage: elements of all storages of all ranks; None if nobody knows.
        uncovered: elements of a storage that no piece describes; all of them excused.
    """

    shards: ShardMap
    ties: Mapping[str, str]
    elements: int
    held: int
    unheld: Mapping[str, int]
    storage: int | None
    uncovered: Mapping[Storage, int]


def check_coverage(
    shards: ShardMap,
    *,
    is_source: bool = False,
    storages: Mapping[Storage, int] | None = None,
    buffers: Collection[str] = (),
    known: Container[str] | None = None,
) -> Coverage:
    """Say what a shard map covers, or refuse it.

    Args:
        shards: the map.
        is_source: whether every element of every tensor must be held, but of computed ones.
        storages: elements of every parameter of every rank, in which every element must be
            described; None if nobody knows.
        buffers: parameters of which that is not asked, and computed ones neither.
        known: names that a tied tensor goes by, if it has one of them.

    Raises:
        InvalidArgument: a piece is of no tensor or storage; two elements of tensors share one of a
            storage, and the tensors are not tied; or something is silently uncovered.
    """
    check_pieces(shards)
    ties = find_ties(shards, known=known)
    single = renamed(shards, ties)
    unheld = _unheld(single)
    if is_source:
        _refuse_unheld({name: at for name, at in unheld.items() if name not in single.computed})
    described = described_elements(single)
    uncovered = {} if storages is None else uncovered_elements(single, described, storages)
    _refuse_uncovered(uncovered, excused={*buffers, *shards.computed})
    elements = sum(prod(spec.shape) for spec in single.tensors.values())
    missing = {name: sum(region.count for region in at) for name, at in unheld.items()}
    held = elements - sum(missing.values())
    storage = None if storages is None else sum(storages.values())
    return Coverage(single, ties, elements, held, missing, storage, uncovered)


def _unheld(shards: ShardMap) -> dict[str, list[Region]]:
    """Return, by tensor, boxes that no rank holds."""
    held: dict[str, set[Region]] = {name: set() for name in shards.tensors}
    for piece in shards.pieces:
        held[piece.tensor].add(piece.region)
    known = cache(cells)  # the layers of a model are held alike
    unheld: dict[str, list[Region]] = {}
    for name, regions in held.items():
        found = known(shards.tensors[name].shape, tuple(sorted(regions)))
        if missing := [cell.region for cell in found if not cell.held_by]:
            unheld[name] = missing
    return unheld


def _refuse_unheld(unheld: Mapping[str, list[Region]]) -> None:
    for name, regions in unheld.items():
        raise InvalidArgument(
            f"no rank of the source holds {name}{described(regions[0])}{_more(unheld)}; add pieces "
            f"for it, or list the tensor as computed"
        )


def _refuse_uncovered(uncovered: Mapping[Storage, int], *, excused: Collection[str]) -> None:
    silent = {where: count for where, count in uncovered.items() if where[1] not in excused}
    for (rank, parameter), count in silent.items():
        raise InvalidArgument(
            f"no piece says what {count} elements of {parameter} on rank {rank} are"
            f"{_more(silent)}; add pieces, or list the parameter as computed or as a buffer"
        )


def _more(found: Collection[object]) -> str:
    more = len(found) - 1
    return f", and there {'is' if more == 1 else 'are'} {more} more like it" if more else ""


# ---- tensors under several names: one remains, and every element is described once


def find_ties(shards: ShardMap, *, known: Container[str] | None = None) -> dict[str, str]:
    """Return each other name of a tensor, and the name that it goes by.

    Names are tied where shape, dtype and every view of every rank are the same.

    Args:
        shards: the map.
        known: names to prefer; else a tensor goes by the first of its names, in the map's order.
    """
    views: dict[str, set[tuple[int, Region, LocalView]]] = {}
    for piece in shards.pieces:
        view = _plain(piece, piece.tensor).view
        views.setdefault(piece.tensor, set()).add((piece.rank, piece.region, view))
    names: dict[object, list[str]] = {}
    for name, spec in shards.tensors.items():
        if name in views:
            key = (spec.shape, spec.dtype, frozenset(views[name]))
            names.setdefault(key, []).append(name)
    ties: dict[str, str] = {}
    for tied in names.values():
        first = next((name for name in tied if known is not None and name in known), tied[0])
        ties.update((name, first) for name in tied if name != first)
    return ties


def renamed(shards: ShardMap, ties: Mapping[str, str]) -> ShardMap:
    """Return the map with every tensor under the name that it goes by, and no piece twice."""
    tensors: dict[str, TensorSpec] = {}
    for name, spec in shards.tensors.items():
        goes_by = ties.get(name, name)
        tensors.setdefault(goes_by, TensorSpec(goes_by, spec.shape, spec.dtype))
    pieces = (_plain(piece, ties.get(piece.tensor, piece.tensor)) for piece in shards.pieces)
    computed = {ties.get(name, name): reason for name, reason in shards.computed.items()}
    return ShardMap(tensors, tuple(dict.fromkeys(pieces)), computed)


def _plain(piece: Piece, tensor: str) -> Piece:
    """Return a piece of a tensor whose view has no strides that are never taken."""
    view = piece.view
    if 1 in piece.region.shape:
        steps = zip(piece.region.shape, view.strides, strict=True)
        strides = tuple(stride if size > 1 else 0 for size, stride in steps)
        view = LocalView(view.parameter, view.offset, strides)
    elif tensor == piece.tensor:
        return piece
    return Piece(tensor, piece.region, piece.rank, view)
