"""A publisher for weights that are one row of bits, for experiments and tests."""

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.transfer.manifest import Manifest, Version
from rose.transfer.publishing.contributor import Contributor, Encoding
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import OnPublished, Publisher
from rose.transfer.publishing.selection import Selection
from rose.transfer.signing import UNSIGNED, Signing
from rose.transfer.tiles import TILE_ELEMENTS, Row, Tiles

Bits = npt.NDArray[np.uint16]


class RowPublisher(Publisher):
    """A `Publisher` with one contributor, whose shadow is a row.

    Args:
        weights: (n,) uint16, the initial bits; copied.
        run: name of the training run.
        incarnation: number of this trainer process, higher than that of any earlier process.
        first_version: version number of `weights`, above all numbers of earlier incarnations.
        log: log to append to; it must have no other publisher.
        tile_elements: elements per tile.
        encoding: see `Contributor`.
        signing: key shared with the receivers.
        selection: selection for every tile; None to send all changes.
        on_published: see `Publisher`.
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
        encoding: Encoding = "gap",
        signing: Signing = UNSIGNED,
        selection: Selection | None = None,
        on_published: OnPublished | None = None,
    ) -> None:
        _check_row(weights)
        tiles = Tiles.of(len(weights), tile_elements)
        shadow = Row(weights.copy(), tiles)
        selections = {} if selection is None else dict.fromkeys(range(len(tiles)), selection)
        contributor = Contributor(shadow, tiles, encoding=encoding, selections=selections)
        opening = Version(run, incarnation, first_version)
        super().__init__(
            [contributor], tiles, opening, log, signing=signing, on_published=on_published
        )

    def publish(self, new: Bits) -> Manifest:  # type: ignore[override]
        """Make `new`, (n,) uint16, the next version; see `Publisher.publish`."""
        _check_row(new)
        if len(new) != self.tiles.count:
            raise InvalidArgument(f"expected {self.tiles.count} elements, got {len(new)}")
        return super().publish(Row(new, self.tiles))


def _check_row(weights: Bits) -> None:
    if weights.dtype != np.uint16 or weights.ndim != 1:
        raise InvalidArgument(
            f"weights must be one row of uint16, got {weights.ndim} dimensions of {weights.dtype}"
        )
