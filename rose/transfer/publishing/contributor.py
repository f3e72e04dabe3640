"""The contributor: owns the shadow of some tiles, and packs what changed in them."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.transfer.codec.class_rule import SAMPLED_BLOCKS, class_rule
from rose.transfer.codec.delta import BLOCK_ELEMENTS, ClassRule, Delta
from rose.transfer.codec.operations import delta_apply, delta_pack, digest
from rose.transfer.codec.strat import host_row, link_pack
from rose.transfer.codec.tensor import bits_of
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import Chunk
from rose.transfer.publishing.selection import Drift, Selection, drift_of
from rose.transfer.tiles import Tiles
from rose.transfer.views import TileViews
from rose.units import ceil_div

Link: TypeAlias = Literal["gap", "strat"]
LINKS: Final = ("gap", "strat")
NO_DRIFT: Final = Drift()
_BF16_BITS: Final = 16


@dataclass(slots=True)
class Part:
    """What one contributor changed for a version: noted tile by tile, so that it can be taken back.

    Args:
        deltas: that the shadow has moved by, by tile.
        frames: what is sent.
        chunks: what the manifest says of them.
        ages: as they were before, of tiles of which a selection is sent.
        drift: what is left of those tiles to send.
    """

    deltas: dict[int, Delta] = field(default_factory=dict)
    frames: dict[int, bytes] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    ages: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)
    drift: Drift = NO_DRIFT


class Contributor:
    """Owns the shadow: what receivers of the newest version hold in its tiles.

    One thread uses it.

    Args:
        shadow: of the weights; changed in place by nobody else.
        tiles: how all weights are cut.
        owned: the tiles that are its to send, ascending; None for all.
        link: "strat" sends about a quarter fewer bytes, for a second pass over the weights on both
            sides: for links slower than that. Over loopback, "gap" is the faster one.
        threads: of a CPU.
        selections: what is sent of some tiles, all of them bf16; of the others everything is.

    Raises:
        InvalidArgument: there is no such link, or a selection is for a tile of another width.
    """

    def __init__(
        self,
        shadow: TileViews,
        tiles: Tiles,
        owned: Sequence[int] | None = None,
        *,
        link: Link = "gap",
        threads: int = 1,
        selections: Mapping[int, Selection] | None = None,
    ) -> None:
        if link not in LINKS:
            raise InvalidArgument(f"link '{link}': choose gap or strat")
        self.owned = range(len(tiles)) if owned is None else owned
        self._tiles = tiles
        self._shadow = shadow
        self._is_strat = link == "strat"
        self._threads = threads
        self._selections = {} if selections is None else dict(selections)
        for tile in self._selections:
            if tiles[tile].width != _BF16_BITS:
                raise InvalidArgument(f"tile {tile} is not of bf16: all of its changes are sent")
        self._ages = {
            tile: np.zeros(shadow.bits(tile).shape, np.uint8) for tile in self._selections
        }
        self.digests = TileDigests({tile: digest(shadow.bits(tile)) for tile in self.owned})

    def begin(self, new: TileViews) -> None:
        """Do nothing: what is here is packed by the thread that asks for it."""

    def pack(self, new: TileViews, part: Part) -> None:
        """Pack every owned tile that changed, and move the shadow to `new`; `part` is filled."""
        rules = self._rules(new)
        for tile in self.owned:
            if tile in self._selections:
                delta = link = self._pack_selected(new.bits(tile), tile, part)
            else:
                delta, link = self._pack_both(new.bits(tile), tile, rules)
            if delta.changed:
                part.deltas[tile] = delta
                part.frames[tile] = frame = link.to_bytes()
                part.chunks.append(chunk_of(tile, delta, frame))

    def keep(self, part: Part) -> None:
        """Hold the shadow to be what `part` made of it."""
        self.digests.update({chunk.tile: chunk.digest for chunk in part.chunks})

    def give_up(self, part: Part) -> None:
        """Do nothing, as in `begin`."""

    def take_back(self, part: Part) -> bool:
        """Let the shadow be what it was; return whether it is, bit by bit."""
        for tile, delta in part.deltas.items():
            delta_apply(self._shadow.bits(tile), delta, undo=True)
        for tile, ages in part.ages.items():
            self._ages[tile] = ages
        return all(digest(self._shadow.bits(tile)) == self.digests[tile] for tile in self.owned)

    def whole(
        self, tiles: Iterable[int], undone: Sequence[dict[int, Delta]] = ()
    ) -> Iterator[tuple[Chunk, bytes]]:
        """Yield tiles as deltas from zeros, as they are or were before some deltas.

        Args:
            tiles: owned ones.
            undone: deltas by tile that led here, the last one first.
        """
        for tile in tiles:
            bits = host_row(bits_of("shadow", self._shadow.bits(tile)))
            if any(tile in deltas for deltas in undone):
                bits = bits.copy()
            yield whole_tile(tile, bits, undone)

    def _pack_selected(self, new: Any, tile: int, part: Part) -> Delta:
        shadow, ages = self._shadow.bits(tile), self._ages[tile]
        part.ages[tile] = ages.copy()
        delta = self._selections[tile].pack(new, shadow, ages)
        part.drift += drift_of(new, shadow)
        return delta

    def _pack_both(
        self, new: Any, tile: int, rules: dict[int, ClassRule | None]
    ) -> tuple[Delta, Delta]:
        """Return what takes the shadow back, and what is sent."""
        shadow = self._shadow.bits(tile)
        rule = rules.get(self._tiles[tile].width)
        if rule is None:
            delta = delta_pack(
                new,
                shadow,
                threads=self._threads,
                base_digest=self.digests[tile],
            )
            return delta, delta
        return link_pack(new, shadow, rule)

    def _rules(self, new: TileViews) -> dict[int, ClassRule | None]:
        """Choose a class rule for each width, from blocks that are spread evenly over the tiles."""
        if not self._is_strat:
            return {}
        by_width: dict[int, list[int]] = {}
        for tile in self.owned:
            by_width.setdefault(self._tiles[tile].width, []).append(tile)
        return {width: self._rule(tiles, new) for width, tiles in by_width.items()}

    def _rule(self, tiles: Sequence[int], new: TileViews) -> ClassRule | None:
        chosen = tiles[:: ceil_div(len(tiles), SAMPLED_BLOCKS)]
        size = BLOCK_ELEMENTS[0] * ceil_div(SAMPLED_BLOCKS, len(chosen))
        pairs = [
            [host_row(bits_of("tile", views.bits(tile)))[:size] for tile in chosen]
            for views in (new, self._shadow)
        ]
        return class_rule(*(np.concatenate(rows) for rows in pairs))


def whole_tile(tile: int, bits: Any, undone: Sequence[Mapping[int, Delta]]) -> tuple[Chunk, bytes]:
    """Return a tile as a delta from zeros, once some deltas are undone in `bits`."""
    for deltas in undone:
        if tile in deltas:
            delta_apply(bits, deltas[tile], undo=True)
    delta = delta_pack(bits, np.zeros_like(bits))
    frame = delta.to_bytes()
    return chunk_of(tile, delta, frame), frame


def chunk_of(tile: int, delta: Delta, frame: bytes) -> Chunk:
    """Return what a manifest says of a frame."""
    return Chunk(tile, len(frame), delta.changed, hashlib.sha256(frame).digest(), delta.digest)
