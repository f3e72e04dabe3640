"""A publisher of weights that are one row of bits: the plainest trainer."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.transfer.codec.delta import BLOCK_ELEMENTS
from rose.transfer.manifest import UNSIGNED, Manifest, Signing
from rose.transfer.publishing.contributor import Contributor, Link
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import Published, Publisher
from rose.transfer.publishing.selection import Drift, Selection
from rose.transfer.row import Row
from rose.transfer.tiles import TILE_ELEMENTS, Tiles
from rose.transfer.version import Version

Bits = npt.NDArray[np.uint16]


class RowPublisher:
    """A `Publisher` with one contributor, whose shadow is a row.

    Args:
        weights: (n,) uint16, the bits to begin with; copied.
        run: names the training run.
        incarnation: of the trainer, higher than any before it.
        first_version: the number of `weights`, above all that earlier incarnations used.
        log: gets what is published; one publisher has it.
        tile_elements: how the row is cut.
        block_elements: as for `delta_pack`.
        link: as for `Contributor`.
        signing: with the key that receivers have.
        selection: what is sent of every tile; None for all.
        on_published: as for `Publisher`.
    """

    def __init__(
        self,
        weights: Bits,
        run: str,
        incarnation: int,
        first_version: int,
        log: VersionLog,
        *,
        tile_elements: int = TILE_ELEMENTS,
        block_elements: int = BLOCK_ELEMENTS[0],
        link: Link = "gap",
        signing: Signing = UNSIGNED,
        selection: Selection | None = None,
        on_published: Published | None = None,
    ) -> None:
        _check_row(weights)
        self._tiles = Tiles.of(len(weights), tile_elements)
        shadow = Row(weights.copy(), self._tiles)
        selections = {} if selection is None else dict.fromkeys(range(len(self._tiles)), selection)
        contributor = Contributor(
            shadow, self._tiles, block_elements=block_elements, link=link, selections=selections
        )
        opening = Version(run, incarnation, first_version)
        self._publisher = Publisher(
            [contributor], self._tiles, opening, log, signing=signing, on_published=on_published
        )

    @property
    def version(self) -> Version:
        """Return the newest version."""
        return self._publisher.version

    @property
    def tiles(self) -> Tiles:
        """Return how the row is cut."""
        return self._tiles

    @property
    def drift(self) -> Drift:
        """Return how far the newest version is from the weights it was made of."""
        return self._publisher.drift

    def publish(self, new: Bits) -> Manifest:
        """Make `new`, (n,) uint16, the next version; see `Publisher.publish`."""
        _check_row(new)
        if len(new) != self._tiles.count:
            raise InvalidArgument(f"{len(new)} elements are published as {self._tiles.count}")
        return self._publisher.publish(Row(new, self._tiles))

    def seed(
        self, n: int | None = None, tiles: Sequence[int] | None = None
    ) -> tuple[Manifest, dict[int, bytes]] | None:
        """Return a version with some tiles whole, by default all; see `Publisher.seed`."""
        return self._publisher.seed(n, range(len(self._tiles)) if tiles is None else tiles)


def _check_row(weights: Bits) -> None:
    if weights.dtype != np.uint16 or weights.ndim != 1:
        raise InvalidArgument(
            f"weights of {weights.ndim} dimensions and {weights.dtype} must be one row of uint16"
        )
