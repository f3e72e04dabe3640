"""Arithmetic of boxes: which lie in which, and where a part of one is in memory."""

from math import prod
from typing import Final

from rose.errors import InvalidArgument
from rose.transfer.plan.spec import LocalView, Piece, Region, ShardMap, TensorSpec


def contains(outer: Region, inner: Region) -> bool:
    """Whether every element of `inner` is one of `outer`; both of one tensor."""
    return all(
        first <= at and at + count <= first + size
        for first, size, at, count in zip(
            outer.offset, outer.shape, inner.offset, inner.shape, strict=True
        )
    )


def whole(shape: tuple[int, ...]) -> Region:
    """Return the box of a tensor that has elements."""
    return Region((0,) * len(shape), shape)


def moved(view: LocalView, held: Region, part: Region) -> LocalView:
    """Return where a part of a region lies, given where the region does."""
    steps = zip(view.strides, held.offset, part.offset, strict=True)
    ahead = sum(stride * (at - first) for stride, first, at in steps)
    return LocalView(view.parameter, view.offset + ahead, view.strides)


def described(region: Region) -> str:
    """Return a box as a slice, for sentences."""
    ranges = zip(region.offset, region.shape, strict=True)
    return f"[{', '.join(f'{at}:{at + size}' for at, size in ranges)}]"


# Far more than any has, and few enough for the 64 bits of an address, an identity, or a file.
_ELEMENTS_MAX: Final = 1 << 48
_DIMENSIONS_MAX: Final = 16
_RANKS_MAX: Final = 1 << 32


def check_pieces(shards: ShardMap) -> None:
    """Refuse a map whose pieces are none of its tensors.

    Raises:
        InvalidArgument: a piece is of no tensor of the map or reaches outside of it, its view has
            other dimensions, or a number is negative or absurd; the sentence names the piece.
    """
    for name, spec in shards.tensors.items():
        if spec.name != name:
            raise InvalidArgument(f"the tensor {spec.name} is listed under the name {name}")
        if len(spec.shape) > _DIMENSIONS_MAX or any(size < 0 for size in spec.shape):
            raise InvalidArgument(f"{name} cannot have the shape {spec.shape}")
        if prod(max(1, size) for size in spec.shape) > _ELEMENTS_MAX:
            raise InvalidArgument(f"{name} of shape {spec.shape} has more than 2^48 elements")
    for piece in shards.pieces:
        if piece.tensor not in shards.tensors:
            raise InvalidArgument(f"rank {piece.rank} holds a piece of {piece.tensor}, not listed")
        _check_piece(piece, shards.tensors[piece.tensor])


def _check_piece(piece: Piece, spec: TensorSpec) -> None:
    region, view = piece.region, piece.view
    what = f"the piece {described(region)} of {piece.tensor} on rank {piece.rank}"
    if len(region.shape) != len(spec.shape):
        raise InvalidArgument(f"{what} has other dimensions than its shape {spec.shape}")
    if 0 in spec.shape or not contains(whole(spec.shape), region):
        raise InvalidArgument(f"{what} reaches outside of its shape {spec.shape}")
    if len(view.strides) != len(region.shape):
        raise InvalidArgument(f"{what} has {len(view.strides)} strides")
    if not 0 <= piece.rank < _RANKS_MAX or min((view.offset, *view.strides)) < 0:
        raise InvalidArgument(f"{what} has a negative offset or stride, or is on no rank")
    if view.offset + sum(map(int.__mul__, view.strides, region.shape)) > _ELEMENTS_MAX:
        raise InvalidArgument(f"{what} reaches over 2^48 elements of {view.parameter}")
