"""Members of a transfer, trainers and serving engines alike, and the pieces that they hold.

A *region* is a box of a tensor, in the coordinates of the checkpoint's tensor.
A *piece* is a region held by one rank, with its strided view into a parameter of that rank.
A *shard map* is all pieces of one group of ranks: a trainer, or one replica of an engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from rose.errors import InvalidArgument


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """A box of a tensor.

    Args:
        offset: first index in each dimension.
        shape: size in each dimension, > 0. A scalar has no dimension.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            InvalidArgument: the numbers of dimensions differ, or a number is too small.
        """
        if len(self.offset) != len(self.shape):
            raise InvalidArgument(
                f"a region needs an offset for each size, got offset {self.offset} and shape "
                f"{self.shape}"
            )
        if min(self.offset, default=0) < 0 or min(self.shape, default=1) < 1:
            raise InvalidArgument(
                f"a region needs offsets >= 0 and sizes >= 1, got offset {self.offset} and shape "
                f"{self.shape}"
            )

    @property
    def count(self) -> int:
        """Return the number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of the checkpoint.

    Args:
        name: name in the checkpoint.
        shape: shape of the whole tensor.
        dtype: dtype of the elements, as torch names it, without "torch.".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class LocalView:
    """The place of a region in the memory of a rank: an affine map into one parameter.

    The element with index i in the region, relative to the region's offset, is element
    offset + sum(i * strides) of the parameter's storage.

    Args:
        parameter: the rank's name of the parameter; parameters that share a storage share a name.
        offset: index of the first element in the storage.
        strides: elements from one index to the next, per dimension, >= 0.
    """

    parameter: str
    offset: int
    strides: tuple[int, ...]


# Places of tiles in a rank's memory: for each tile its views, each with the shape of its region.
Places: TypeAlias = Mapping[int, tuple[tuple[LocalView, tuple[int, ...]], ...]]


@dataclass(frozen=True, slots=True)
class Piece:
    """A region held by a rank.

    Args:
        tensor: canonical name of the tensor.
        region: box in the tensor.
        view: place in the rank's memory.
    """

    tensor: str
    region: Region
    rank: int
    view: LocalView


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The pieces of one group of ranks.

    Args:
        pieces: pieces of all ranks. Several ranks may hold one region, and one rank may hold a
            region twice.
        computed: tensors whose parameters a loader computes with a transform that is not a view;
            maps the name to the reason. No piece describes such a tensor, so it cannot be changed
            in place.
    """

    tensors: Mapping[str, TensorSpec]
    pieces: tuple[Piece, ...]
    computed: Mapping[str, str]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return all ranks with a piece, ascending."""
        return tuple(sorted({piece.rank for piece in self.pieces}))


@dataclass(frozen=True, slots=True)
class SourceRanks:
    """The ranks of a trainer.

    Args:
        cluster: cluster of the ranks.
        ties: maps each alias of a tied tensor to the tensor's canonical name. Names that share a
            storage need not be listed. Copies that the trainer keeps equal must be listed, such as
            the embedding at both ends of a pipeline.
    """

    cluster: str
    shards: ShardMap
    ties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replica:
    """The ranks of one engine, which commit together.

    Args:
        name: unique among all replicas and relays.
        cluster: cluster of the ranks.
        converts: pairs (dtype on the wire, dtype in the engine) that the engine converts by itself.
    """

    name: str
    cluster: str
    shards: ShardMap
    converts: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class RelayNode:
    """A node that receives tiles for its cluster and distributes them.

    Args:
        name: unique among all replicas and relays.
        cluster: cluster that it serves.
    """

    name: str
    cluster: str


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A rank of a replica, as the receiver of a tile."""

    cluster: str
    replica: str
    rank: int
