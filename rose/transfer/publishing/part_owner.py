"""Who owns the shadow of some tiles, as a publisher needs one: here, or in another process."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from rose.transfer.codec.delta import Delta
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import Chunk
from rose.transfer.publishing.contributor import Part
from rose.transfer.views import TileViews


class PartOwner(Protocol):
    """A `Contributor`, or a `RemotePart`, whose contributor is in the process of another rank."""

    @property
    def owned(self) -> Sequence[int]:
        """The tiles that are its to send, ascending."""
        ...

    @property
    def digests(self) -> TileDigests:
        """Of its tiles as the newest version has them."""
        ...

    def begin(self, new: TileViews) -> None:
        """Hear what `pack` will be asked for, so that all owners work at once; does not wait."""
        ...

    def pack(self, new: TileViews, part: Part) -> None:
        """Pack every owned tile that changed, and move the shadow to `new`; `part` is filled."""
        ...

    def keep(self, part: Part) -> None:
        """Hold the shadow to be what `part` made of it."""
        ...

    def give_up(self, part: Part) -> None:
        """Hear that `take_back` is asked for next, so that all do it at once; does not wait."""
        ...

    def take_back(self, part: Part) -> bool:
        """Let the shadow be what it was; return whether it is, bit by bit."""
        ...

    def whole(
        self, tiles: Iterable[int], undone: Sequence[dict[int, Delta]] = ()
    ) -> Iterator[tuple[Chunk, bytes]]:
        """Yield tiles as deltas from zeros, as they are or were before some deltas."""
        ...
