"""The elements of the ranks' memory that a shard map describes; none may be described twice."""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from rose.errors import InvalidArgument
from rose.transfer.codec.box import Box
from rose.transfer.plan.regions import described
from rose.transfer.plan.spec import Piece, ShardMap

Storage: TypeAlias = tuple[int, str]  # rank, parameter
_Place: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, shape, strides

_BASE: Final = 1  # fake address of a storage; NumPy takes address 0 for no memory


def described_elements(shards: ShardMap) -> dict[Storage, int]:
    """Return the number of elements that the pieces describe, by storage.

    Raises:
        InvalidArgument: two tensors share an element of a storage; the message names both.
    """
    storages: dict[Storage, list[Piece]] = {}
    for piece in shards.pieces:
        storages.setdefault((piece.rank, piece.view.parameter), []).append(piece)
    sound: set[tuple[_Place, ...]] = set()  # layers and ranks repeat: check each pattern once
    for pieces in storages.values():
        pieces.sort(key=_place)
        pattern = tuple(map(_place, pieces))
        if pattern not in sound:
            _check_apart(pieces)
            sound.add(pattern)
    return {
        storage: sum(piece.region.count for piece in pieces) for storage, pieces in storages.items()
    }


def uncovered_elements(
    shards: ShardMap, covered: Mapping[Storage, int], sizes: Mapping[Storage, int]
) -> dict[Storage, int]:
    """Return the number of elements that no piece describes, for each storage that has any.

    Args:
        shards: map whose pieces share no element of a storage.
        covered: result of `described_elements` for this map.
        sizes: number of elements, by storage.

    Raises:
        InvalidArgument: a piece is in an unknown storage, or exceeds its storage.
    """
    for piece in shards.pieces:
        storage = (piece.rank, piece.view.parameter)
        size, behind = sizes.get(storage, 0), _box(piece).last - _BASE
        if behind > size:
            raise InvalidArgument(
                f"{_named(piece)} reaches to element {behind} of {piece.view.parameter}, which has "
                f"{size} elements"
            )
    counts = ((storage, size - covered.get(storage, 0)) for storage, size in sizes.items())
    return {storage: count for storage, count in counts if count}


def _check_apart(pieces: list[Piece]) -> None:
    for piece in pieces:
        if _box(piece).may_repeat:
            raise InvalidArgument(f"{_named(piece)} must not have two elements at one address")
    for one, other in _meetings(pieces):
        raise InvalidArgument(
            f"{_named(one)} and {_named(other)} share elements of {one.view.parameter}, and are "
            f"not the same tensor"
        )


def _meetings(pieces: list[Piece]) -> Iterator[tuple[Piece, Piece]]:
    """Yield pairs of pieces that share an element."""
    near: list[tuple[Box, Piece]] = []
    for piece in pieces:
        box = _box(piece)
        near = [(other, whose) for other, whose in near if other.last > box.address]
        yield from ((whose, piece) for other, whose in near if box.meets(other))
        near.append((box, piece))


def _place(piece: Piece) -> _Place:
    return piece.view.offset, piece.region.shape, piece.view.strides


def _box(piece: Piece) -> Box:
    """Return the elements as a box of bytes, one byte per element."""
    steps = zip(piece.region.shape, piece.view.strides, strict=True)
    taken = [(size, stride) for size, stride in steps if size > 1]
    shape, strides = tuple(size for size, _ in taken), tuple(stride for _, stride in taken)
    return Box(_BASE + piece.view.offset, shape, strides, 1)


def _named(piece: Piece) -> str:
    return f"{piece.tensor}{described(piece.region)} on rank {piece.rank}"
