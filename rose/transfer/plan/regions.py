"""Arithmetic of boxes: containment, and the place of a part in memory."""

from math import prod
from typing import Final

from rose.errors import InvalidArgument
from rose.transfer.plan.spec import LocalView, Piece, Region, ShardMap, TensorSpec


def contains(outer: Region, inner: Region) -> bool:
    """Return True if `outer` contains `inner`, a box of the same tensor."""
    return all(
        first <= at and at + count <= first + size
        for first, size, at, count in zip(
            outer.offset, outer.shape, inner.offset, inner.shape, strict=True
        )
    )


def whole(shape: tuple[int, ...]) -> Region:
    """Return the box of a whole tensor."""
    return Region((0,) * len(shape), shape)


def moved(view: LocalView, held: Region, part: Region) -> LocalView:
    """Return the view of the box `part`, given the view of the region `held` that contains it."""
    steps = zip(view.strides, held.offset, part.offset, strict=True)
    ahead = sum(stride * (at - first) for stride, first, at in steps)
    return LocalView(view.parameter, view.offset + ahead, view.strides)


def described(region: Region) -> str:
    """Return a box as a slice, for messages."""
    ranges = zip(region.offset, region.shape, strict=True)
    return f"[{', '.join(f'{at}:{at + size}' for at, size in ranges)}]"


# Limits far above any model, within which sums and products fit in 64 bits.
_ELEMENTS_MAX: Final = 1 << 48
_DIMENSIONS_MAX: Final = 16
_RANKS_MAX: Final = 1 << 32


def check_pieces(shards: ShardMap) -> None:
    """Check that pieces, tensors and views of a map are consistent.

    Raises:
        InvalidArgument: a piece names no tensor of the map or exceeds its tensor, its view has
            another number of dimensions, or a number is negative or above a limit; the message
            names the piece.
    """
    for name, spec in shards.tensors.items():
        if spec.name != name:
            raise InvalidArgument(f"the tensor {spec.name} is listed under the name {name}")
        if len(spec.shape) > _DIMENSIONS_MAX or any(size < 0 for size in spec.shape):
            raise InvalidArgument(
                f"{name} must have at most {_DIMENSIONS_MAX} dimensions, none negative, got "
                f"{spec.shape}"
            )
        if prod(max(1, size) for size in spec.shape) > _ELEMENTS_MAX:
            raise InvalidArgument(f"{name} of shape {spec.shape} has more than 2^48 elements")
    for piece in shards.pieces:
        if piece.tensor not in shards.tensors:
            raise InvalidArgument(
                f"rank {piece.rank} holds a piece of {piece.tensor}, which the map does not list"
            )
        _check_piece(piece, shards.tensors[piece.tensor])


def _check_piece(piece: Piece, spec: TensorSpec) -> None:
    region, view = piece.region, piece.view
    what = f"the piece {described(region)} of {piece.tensor} on rank {piece.rank}"
    if len(region.shape) != len(spec.shape):
        raise InvalidArgument(
            f"{what} must have as many dimensions as the tensor's shape {spec.shape}"
        )
    if 0 in spec.shape or not contains(whole(spec.shape), region):
        raise InvalidArgument(f"{what} exceeds the tensor's shape {spec.shape}")
    if len(view.strides) != len(region.shape):
        raise InvalidArgument(f"{what} needs {len(region.shape)} strides, got {len(view.strides)}")
    if not 0 <= piece.rank < _RANKS_MAX or min((view.offset, *view.strides)) < 0:
        raise InvalidArgument(
            f"{what} must have a rank from 0 to 2^32 - 1, and no negative offset or stride"
        )
    if view.offset + sum(map(int.__mul__, view.strides, region.shape)) > _ELEMENTS_MAX:
        raise InvalidArgument(f"{what} reaches beyond element 2^48 of {view.parameter}")
