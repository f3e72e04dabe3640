"""A tile of a plan: a box of a tensor, and its way from one contributor to all receivers."""

from dataclasses import dataclass

from rose.transfer.plan.dtypes import width_of
from rose.transfer.plan.members import Holder
from rose.transfer.plan.spec import Region


@dataclass(frozen=True, slots=True, order=True)
class Landing:
    """Where a tile comes into a cluster.

    Args:
        cluster: that it comes into.
        relay: the one it lands on, before it fans out.
    """

    cluster: str
    relay: str


@dataclass(frozen=True, slots=True)
class PlannedTile:
    """A box of a tensor that all ranks have whole or not at all, in row-major order.

    Args:
        index: its place among the tiles.
        tensor: by its canonical name.
        region: of it.
        dtype: that crosses.
        contributor: the source rank that sends it.
        landings: where it lands, one relay for each cluster that has relays and needs it; to others
            the contributor sends it receiver by receiver.
        receivers: who has it in the end, ascending.
    """

    index: int
    tensor: str
    region: Region
    dtype: str
    contributor: int
    landings: tuple[Landing, ...]
    receivers: tuple[Holder, ...]

    @property
    def count(self) -> int:
        """Return how many elements it has."""
        return self.region.count

    @property
    def width(self) -> int:
        """Return the bits of an element."""
        return width_of(self.tensor, self.dtype)

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""
        return self.count * self.width // 8
