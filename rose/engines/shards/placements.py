"""The pieces of a tensor distributed over a mesh of ranks, from its placements alone."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from rose.engines.shards.look import row_major
from rose.errors import InvalidArgument
from rose.transfer.plan import LocalView, Piece, Region


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank along a mesh dimension holds the same elements."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Ranks along a mesh dimension hold one chunk each, as `torch.chunk` makes them.

    Args:
        dim: dimension of the tensor; the last chunks may be smaller, or empty.
    """

    dim: int


@dataclass(frozen=True, slots=True)
class StridedShard:
    """Each rank holds one part of every first-level chunk, as when FSDP2 divides shards of TP.

    Args:
        dim: dimension of the tensor.
        split_factor: number of first-level chunks; each is divided among all ranks.
    """

    dim: int
    split_factor: int


Placement: TypeAlias = Replicate | Shard | StridedShard


class _Run(NamedTuple):
    """Consecutive indices."""

    first: int
    size: int


def pieces_of_placements(
    name: str,
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    placements: Sequence[Placement],
    *,
    ranks: Sequence[int] | None = None,
    parameter: str | None = None,
) -> tuple[Piece, ...]:
    """Return the pieces of every rank of a mesh.

    Each rank's local tensor is row-major and starts at the first element of its own storage.

    Args:
        name: name of the tensor.
        shape: shape of the whole tensor.
        mesh_shape: number of ranks, per mesh dimension.
        placements: one per mesh dimension, applied from left to right.
        ranks: ranks of the mesh in row-major order; 0, 1, 2 ... by default.
        parameter: name of the local tensor; by default `name`.

    Raises:
        InvalidArgument: the numbers of dimensions or ranks do not match.
    """
    ranks = range(math.prod(mesh_shape)) if ranks is None else ranks
    _check(name, shape, mesh_shape, placements, ranks)
    pieces: list[Piece] = []
    coordinates = itertools.product(*map(range, mesh_shape))
    for rank, at in zip(ranks, coordinates, strict=True):
        runs = [[_Run(0, size)] for size in shape]
        for placement, parts, index in zip(placements, mesh_shape, at, strict=True):
            if not isinstance(placement, Replicate):
                dim = placement.dim % len(shape)
                runs[dim] = _held(runs[dim], placement, parts, index)
        pieces += _pieces(name, runs, rank, parameter or name)
    return tuple(pieces)


def local_shape(pieces: Sequence[Piece]) -> tuple[int, ...] | None:
    """Return the shape of a rank's local tensor, from its pieces; None without pieces."""
    if not pieces:
        return None
    shapes = [
        {piece.region.offset[at]: piece.region.shape[at] for piece in pieces}
        for at in range(len(pieces[0].region.shape))
    ]
    return tuple(sum(runs.values()) for runs in shapes)


def _held(runs: list[_Run], placement: Shard | StridedShard, parts: int, index: int) -> list[_Run]:
    """Return the part of `runs` that one rank of a mesh dimension holds."""
    if isinstance(placement, Shard):
        return _chunk(runs, parts, index)
    pieces = (
        _chunk(_chunk(runs, placement.split_factor, at), parts, index)
        for at in range(placement.split_factor)
    )
    return _joined(itertools.chain.from_iterable(pieces))


def _chunk(runs: Sequence[_Run], parts: int, index: int) -> list[_Run]:
    """Return one of `parts` chunks of a list of indices."""
    size = -(-sum(run.size for run in runs) // parts)
    first, last, at = index * size, (index + 1) * size, 0
    kept: list[_Run] = []
    for run in runs:
        begin, end = max(first, at), min(last, at + run.size)
        if begin < end:
            kept.append(_Run(run.first + begin - at, end - begin))
        at += run.size
    return kept


def _joined(runs: Iterator[_Run]) -> list[_Run]:
    """Merge adjacent runs."""
    kept: list[_Run] = []
    for run in runs:
        if kept and sum(kept[-1]) == run.first:
            kept[-1] = _Run(kept[-1].first, kept[-1].size + run.size)
        else:
            kept.append(run)
    return kept


def _pieces(name: str, runs: list[list[_Run]], rank: int, parameter: str) -> Iterator[Piece]:
    """Yield the pieces of a local tensor that holds the indices `runs` of each dimension."""
    strides = row_major([sum(run.size for run in row) for row in runs])
    placed = [
        list(zip(row, itertools.accumulate((one.size for one in row), initial=0), strict=False))
        for row in runs
    ]
    for box in itertools.product(*placed):
        region = Region(tuple(run.first for run, _ in box), tuple(run.size for run, _ in box))
        offset = sum(at * stride for (_, at), stride in zip(box, strides, strict=True))
        yield Piece(name, region, rank, LocalView(parameter, offset, strides))


def _check(
    name: str,
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    placements: Sequence[Placement],
    ranks: Sequence[int],
) -> None:
    if len(placements) != len(mesh_shape) or len(ranks) != math.prod(mesh_shape):
        raise InvalidArgument(
            f"{name} on a mesh of shape {tuple(mesh_shape)} must have {len(mesh_shape)} placements "
            f"and {math.prod(mesh_shape)} ranks, got {len(placements)} placements and "
            f"{len(ranks)} ranks"
        )
    for one in placements:
        if not isinstance(one, Replicate) and not -len(shape) <= one.dim < len(shape):
            raise InvalidArgument(
                f"{name} must be sharded along one of its {len(shape)} dimensions, got {one.dim}"
            )
        if isinstance(one, StridedShard) and one.split_factor < 1:
            raise InvalidArgument(
                f"the split factor of {name} must be at least 1, got {one.split_factor}"
            )
