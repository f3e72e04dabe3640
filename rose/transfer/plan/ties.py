"""Tensors under several names: one name remains, and every element is described once."""

from collections.abc import Container, Mapping

from rose.transfer.plan.spec import LocalView, Piece, Region, ShardMap, TensorSpec


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
