"""Who takes part, and holds which part of which tensor: trainers and serving engines alike.

A *region* is a box of a tensor in canonical coordinates: the names and shapes of the checkpoint.
A *piece* says that one rank holds a region, and where: as a strided view into a parameter of its.
A *shard map* is all pieces of one group of ranks: of a trainer, or of one replica of an engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rose.errors import InvalidArgument


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """A box of a tensor.

    Args:
        offset: its first index, in each dimension.
        shape: its size, in each dimension; all > 0. A scalar has no dimension.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse what is no box.

        Raises:
            InvalidArgument: dimensions differ, or a number is too small.
        """
        if len(self.offset) != len(self.shape):
            raise InvalidArgument(f"a region at {self.offset} cannot have the shape {self.shape}")
        if any(at < 0 for at in self.offset) or any(size < 1 for size in self.shape):
            raise InvalidArgument(f"a region at {self.offset} of shape {self.shape} is empty")

    @property
    def count(self) -> int:
        """Return how many elements it has."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as the checkpoint names it.

    Args:
        name: of the checkpoint.
        shape: of the whole tensor.
        dtype: as torch names it, without "torch."; what crosses the link, on both sides.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class LocalView:
    """Where a region lies in the memory of a rank: an affine map into one parameter.

    Element i of the region, an index relative to the region's offset, is element
    offset + sum(i * strides) of the parameter's storage.

    Args:
        parameter: the rank's own name for it; names of one storage are one name.
        offset: elements of the storage before the first one.
        strides: elements from one index to the next, in each dimension; 0 or more.
    """

    parameter: str
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A region that a rank holds.

    Args:
        tensor: the canonical name.
        region: of it.
        rank: who holds it.
        view: where.
    """

    tensor: str
    region: Region
    rank: int
    view: LocalView


@dataclass(frozen=True, slots=True)
class ShardMap:
    """Who of one group of ranks holds what.

    Args:
        tensors: by canonical name.
        pieces: of all ranks. Ranks may hold the same region; one rank may hold it in two places.
        computed: tensors whose parameters a loader computes (a transform that is no view), with the
            reason; no piece shows where they are, so they cannot be changed in place.
    """

    tensors: Mapping[str, TensorSpec]
    pieces: tuple[Piece, ...]
    computed: Mapping[str, str]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return who there is, ascending."""
        return tuple(sorted({piece.rank for piece in self.pieces}))


@dataclass(frozen=True, slots=True)
class Source:
    """The ranks of a trainer.

    Args:
        cluster: where they are.
        shards: what each of them holds.
        ties: other names of tensors, and the names they go by. Who shares a storage need not be
            listed; copies that the trainer keeps equal, such as the embedding at both ends of a
            pipeline, must be.
    """

    cluster: str
    shards: ShardMap
    ties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replica:
    """The ranks of one engine; all commit together.

    Args:
        name: among all replicas and relays.
        cluster: where they are.
        shards: what each of them holds.
        converts: dtypes that it makes of others by itself, as (what crosses, what it keeps).
    """

    name: str
    cluster: str
    shards: ShardMap
    converts: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Relay:
    """A node that tiles land on before they fan out in its cluster.

    Args:
        name: among all replicas and relays.
        cluster: that it serves.
    """

    name: str
    cluster: str


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A rank of a replica, as the receiver of a tile."""

    cluster: str
    replica: str
    rank: int
