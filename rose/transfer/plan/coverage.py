"""Checks that a shard map covers the whole checkpoint and the whole memory of the ranks."""

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
    """The part of the checkpoint, and of the ranks' memory, that a shard map covers.

    Args:
        shards: the map with one name per tied tensor, and no piece twice.
        ties: maps each alias of a tied tensor to the tensor's canonical name.
        elements: number of elements of all tensors.
        held: number of elements that at least one rank holds.
        storage: number of elements of all storages of all ranks; None if unknown.
        uncovered: number of elements that no piece describes, by storage; all are in buffers or in
            computed parameters.
    """

    shards: ShardMap
    ties: Mapping[str, str]
    elements: int
    held: int
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
    """Return the coverage of a shard map, or refuse the map.

    Args:
        shards: map to check.
        is_source: whether some rank must hold each element, except elements of computed tensors.
        storages: number of elements of every parameter of every rank; pieces must describe all of
            them. None if unknown.
        buffers: parameters, besides computed ones, that pieces need not describe.
        known: preferred names for tied tensors.

    Raises:
        InvalidArgument: a piece names no tensor or storage; untied tensors share an element of a
            storage; or an element that must be held or described is not.
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
    held = elements - sum(region.count for at in unheld.values() for region in at)
    storage = None if storages is None else sum(storages.values())
    return Coverage(single, ties, elements, held, storage, uncovered)


def _unheld(shards: ShardMap) -> dict[str, list[Region]]:
    """Return the boxes that no rank holds, by tensor."""
    held: dict[str, set[Region]] = {name: set() for name in shards.tensors}
    for piece in shards.pieces:
        held[piece.tensor].add(piece.region)
    known = cache(cells)  # the layers of a model repeat
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
            f"no piece describes {count} elements of {parameter} on rank {rank}"
            f"{_more(silent)}; add pieces, or list the parameter as computed or as a buffer"
        )


def _more(found: Collection[object]) -> str:
    more = len(found) - 1
    return f", and there {'is' if more == 1 else 'are'} {more} more like it" if more else ""


# ---- tied tensors: one name remains, and every element is described once


def find_ties(shards: ShardMap, *, known: Container[str] | None = None) -> dict[str, str]:
    """Map each alias of a tied tensor to the tensor's canonical name.

    Names are tied if shape, dtype and all views on all ranks are equal.

    Args:
        shards: map to search.
        known: names to prefer; otherwise the first name in the map's order is canonical.
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
    """Return the map with canonical tensor names, and no piece twice."""
    tensors: dict[str, TensorSpec] = {}
    for name, spec in shards.tensors.items():
        goes_by = ties.get(name, name)
        tensors.setdefault(goes_by, TensorSpec(goes_by, spec.shape, spec.dtype))
    pieces = (_plain(piece, ties.get(piece.tensor, piece.tensor)) for piece in shards.pieces)
    computed = {ties.get(name, name): reason for name, reason in shards.computed.items()}
    return ShardMap(tensors, tuple(dict.fromkeys(pieces)), computed)


def _plain(piece: Piece, tensor: str) -> Piece:
    """Return a piece under the name `tensor`, with stride 0 in dimensions of size 1."""
    view = piece.view
    if 1 in piece.region.shape:
        steps = zip(piece.region.shape, view.strides, strict=True)
        strides = tuple(stride if size > 1 else 0 for size, stride in steps)
        view = LocalView(view.parameter, view.offset, strides)
    elif tensor == piece.tensor:
        return piece
    return Piece(tensor, piece.region, piece.rank, view)
