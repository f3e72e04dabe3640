"""A small decoder, sharded in the ways of engines and trainers, in this process's memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from rose.transfer.plan import LocalView, Piece, Places, Region, ShardMap, TensorSpec

Bits = npt.NDArray[np.uint16]

_LAYERS: Final = 4
_HIDDEN: Final = 512
_FFN: Final = 1536
_VOCABULARY: Final = 4096

# The box of a tensor that each rank holds.
Cut = Callable[[str, tuple[int, ...]], Iterator[tuple[int, Region]]]


def decoder() -> dict[str, TensorSpec]:
    """Return the tensors of a decoder of about 12 M elements."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (_VOCABULARY, _HIDDEN), "norm": (_HIDDEN,)}
    for layer in range(_LAYERS):
        at = f"layers.{layer}"
        shapes |= {
            f"{at}.norm": (_HIDDEN,),
            f"{at}.qkv": (3 * _HIDDEN, _HIDDEN),
            f"{at}.up": (_FFN, _HIDDEN),
            f"{at}.down": (_HIDDEN, _FFN),
        }
    return {name: TensorSpec(name, shape, "bfloat16") for name, shape in shapes.items()}


def tensor_parallel(ranks: int) -> Cut:
    """Shard as Megatron does: column-parallel and row-parallel matrices, whole norms."""

    def cut(name: str, shape: tuple[int, ...]) -> Iterator[tuple[int, Region]]:
        dimension = 1 if name.endswith("down") else 0
        for rank in range(ranks):
            yield rank, _whole(shape) if len(shape) == 1 else _share(shape, dimension, rank, ranks)

    return cut


def pipelined(ranks: int) -> Cut:
    """Give each rank some layers, and everything else to the first rank."""

    def cut(name: str, shape: tuple[int, ...]) -> Iterator[tuple[int, Region]]:
        layer = int(name.split(".")[1]) if name.startswith("layers") else 0
        yield layer * ranks // _LAYERS, _whole(shape)

    return cut


def by_rows(ranks: int) -> Cut:
    """Shard the first dimension of everything, as FSDP does."""

    def cut(_name: str, shape: tuple[int, ...]) -> Iterator[tuple[int, Region]]:
        for rank in range(ranks):
            yield rank, _share(shape, 0, rank, ranks)

    return cut


def _whole(shape: tuple[int, ...]) -> Region:
    return Region((0,) * len(shape), shape)


def _share(shape: tuple[int, ...], dimension: int, rank: int, ranks: int) -> Region:
    """Return a rank's share of one dimension; shares differ by at most one."""
    first, last = (shape[dimension] * one // ranks for one in (rank, rank + 1))
    offset, size = [0] * len(shape), list(shape)
    offset[dimension], size[dimension] = first, last - first
    return Region(tuple(offset), tuple(size))


def shard_map(tensors: Mapping[str, TensorSpec], cut: Cut) -> ShardMap:
    """Return the shard map, each box as a separate parameter in row-major order."""
    pieces = [
        Piece(name, region, rank, LocalView(name, 0, _strides(region.shape)))
        for name, spec in tensors.items()
        for rank, region in cut(name, spec.shape)
    ]
    return ShardMap(tensors, tuple(pieces), {})


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Memory:
    """The parameters of one rank.

    Args:
        parameters: one row of elements per parameter, by name.
        regions: box of each parameter.
    """

    parameters: dict[str, Bits]
    regions: dict[str, Region]

    @classmethod
    def of(cls, shards: ShardMap, rank: int, canonical: Mapping[str, Bits]) -> "Memory":
        """Fill a rank's parameters from whole tensors."""
        regions = {piece.tensor: piece.region for piece in shards.pieces if piece.rank == rank}
        parameters = {
            name: canonical[name][box(region)].reshape(-1).copy()
            for name, region in regions.items()
        }
        return cls(parameters, regions)

    def views(self, places: Places) -> dict[int, tuple[Bits, ...]]:
        """Return tiles as arrays that share memory with the parameters."""
        return {tile: tuple(starmap(self._array, row)) for tile, row in places.items()}

    def _array(self, view: LocalView, shape: tuple[int, ...]) -> Bits:
        row = self.parameters[view.parameter]
        return as_strided(row[view.offset :], shape, [2 * stride for stride in view.strides])

    def equals(self, canonical: Mapping[str, Bits]) -> bool:
        """True if every parameter equals its box of the whole tensor, bit for bit."""
        return all(
            np.array_equal(self.parameters[name], canonical[name][box(region)].reshape(-1))
            for name, region in self.regions.items()
        )


def box(region: Region) -> tuple[slice, ...]:
    """Return a region as an index."""
    return tuple(slice(at, at + size) for at, size in zip(region.offset, region.shape, strict=True))
