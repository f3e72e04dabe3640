"""The contributor: owns the shadow of some tiles, and packs their changes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.transfer.codec.class_rule import SAMPLED_BLOCKS, class_rule
from rose.transfer.codec.delta import BLOCK_ELEMENTS, ClassRule, Delta
from rose.transfer.codec.operations import delta_apply, delta_pack, digest
from rose.transfer.codec.strat import host_row, wire_pack
from rose.transfer.codec.tensor import bits_of
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import Chunk
from rose.transfer.publishing.selection import Drift, Selection, drift_of
from rose.transfer.tiles import Tiles, TileViews
from rose.units import ceil_div

Encoding: TypeAlias = Literal["gap", "strat"]
ENCODINGS: Final = ("gap", "strat")
NO_DRIFT: Final = Drift()
_BF16_BITS: Final = 16
# Tiles of a GPU in one call, which takes as much device memory as the tiles: at most half a GiB.
_TILES_AT_ONCE: Final = 256


@dataclass(slots=True)
class PackedPart:
    """The changes of one contributor for a version, recorded by tile so that they can be undone.

    Args:
        deltas: deltas applied to the shadow, by tile.
        frames: frames to send, by tile.
        chunks: entries of the manifest.
        ages: previous ages of the tiles with a selection.
        drift: unsent changes of the tiles with a selection.
    """

    deltas: dict[int, Delta] = field(default_factory=dict)
    frames: dict[int, bytes] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    ages: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)
    drift: Drift = NO_DRIFT


class Contributor:
    """Owns the shadow of its tiles: the weights that receivers of the newest version hold.

    One thread uses it.

    Args:
        shadow: shadow weights; only this object may change them.
        tiles: all tiles of the weights.
        owned: indices of the tiles to send, ascending; None for all.
        encoding: "strat" sends about a quarter fewer bytes, but packing takes longer, and to decode
            a delta the receiver reads the whole tile. That pays on slow links; over loopback, "gap"
            is faster.
        threads: CPU threads.
        selections: selections by tile, for bf16 tiles only. All changes of other tiles are sent.

    Raises:
        InvalidArgument: the encoding is unknown, or a tile with a selection is not bf16.
    """

    def __init__(
        self,
        shadow: TileViews,
        tiles: Tiles,
        owned: Sequence[int] | None = None,
        *,
        encoding: Encoding = "gap",
        threads: int = 1,
        selections: Mapping[int, Selection] | None = None,
    ) -> None:
        if encoding not in ENCODINGS:
            raise InvalidArgument(f"encoding '{encoding}': choose gap or strat")
        self.owned = range(len(tiles)) if owned is None else owned
        self._tiles = tiles
        self._shadow = shadow
        self._is_strat = encoding == "strat"
        self._threads = threads
        self._selections = {} if selections is None else dict(selections)
        for tile in self._selections:
            if tiles[tile].width != _BF16_BITS:
                raise InvalidArgument(
                    f"only tiles of bf16 can have a selection: tile {tile} has elements of "
                    f"{tiles[tile].width} bits"
                )
        self._ages = {
            tile: np.zeros(shadow.bits(tile).shape, np.uint8) for tile in self._selections
        }
        self.digests = TileDigests({tile: digest(shadow.bits(tile)) for tile in self.owned})

    def begin(self, new: TileViews) -> None:
        """Do nothing: this contributor packs in the publisher's thread."""

    def pack(self, new: TileViews, part: PackedPart) -> None:
        """Pack every owned tile that changed into `part`, and update the shadow."""
        rules = self._rules(new)
        for place, tiles in groupby(self.owned, lambda tile: self._gpu_of(tile, rules)):
            if place is not None:
                self._pack_together(new, list(tiles), part)
                continue
            for tile in tiles:
                if tile in self._selections:
                    delta = encoded = self._pack_selected(new.bits(tile), tile, part)
                else:
                    delta, encoded = self._pack_both(new.bits(tile), tile, rules)
                _record(part, tile, delta, encoded)

    def keep(self, part: PackedPart) -> None:
        """Adopt the digests of `part`, whose version was published."""
        self.digests.update({chunk.tile: chunk.digest for chunk in part.chunks})

    def give_up(self, part: PackedPart) -> None:
        """Do nothing; see `begin`."""

    def take_back(self, part: PackedPart) -> bool:
        """Restore the shadow; return whether it is restored bit for bit."""
        for tile, delta in part.deltas.items():
            delta_apply(self._shadow.bits(tile), delta, undo=True)
        for tile, ages in part.ages.items():
            self._ages[tile] = ages
        return all(digest(self._shadow.bits(tile)) == self.digests[tile] for tile in self.owned)

    def whole(self, tile: int) -> Any:
        """Return the elements of a tile of the shadow as a row on the host, for reading at once."""
        return host_row(bits_of("shadow", self._shadow.bits(tile)))

    def _gpu_of(self, tile: int, rules: dict[int, ClassRule | None]) -> str | None:
        """Return the GPU that packs this tile together with others; None if it is packed alone."""
        if tile in self._selections or rules.get(self._tiles[tile].width) is not None:
            return None
        return gpu_of(self._shadow.bits(tile))

    def _pack_together(self, new: TileViews, tiles: Sequence[int], part: PackedPart) -> None:
        """Pack tiles of one GPU in few calls: a copy and a wait per tile would dominate."""
        for at in range(0, len(tiles), _TILES_AT_ONCE):
            some = tiles[at : at + _TILES_AT_ONCE]
            deltas = delta_pack(
                {tile: new.bits(tile) for tile in some},
                {tile: self._shadow.bits(tile) for tile in some},
                base_digest={tile: self.digests[tile] for tile in some},
            )
            # Recorded first, so that all tiles can be undone if a frame fails.
            part.deltas.update({tile: one for tile, one in deltas.items() if one.changed})
            for tile, delta in deltas.items():
                _record(part, tile, delta, delta)

    def _pack_selected(self, new: Any, tile: int, part: PackedPart) -> Delta:
        shadow, ages = self._shadow.bits(tile), self._ages[tile]
        part.ages[tile] = ages.copy()
        delta = self._selections[tile].pack(new, shadow, ages, base_digest=self.digests[tile])
        part.drift += drift_of(new, shadow)
        return delta

    def _pack_both(
        self, new: Any, tile: int, rules: dict[int, ClassRule | None]
    ) -> tuple[Delta, Delta]:
        """Return the delta that undoes the change of the shadow, and the delta to send."""
        shadow = self._shadow.bits(tile)
        rule = rules.get(self._tiles[tile].width)
        threads, base = self._threads, self.digests[tile]
        if rule is None:
            delta = delta_pack(new, shadow, threads=threads, base_digest=base)
            return delta, delta
        return wire_pack(new, shadow, rule, threads=threads, base_digest=base)

    def _rules(self, new: TileViews) -> dict[int, ClassRule | None]:
        """Choose a class rule per width, from blocks spread evenly over the tiles."""
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


def gpu_of(bits: Any) -> str | None:
    """Return torch's name of the GPU of a tile; None for host memory."""
    place = str(getattr(bits, "device", "cpu"))
    return place if place.startswith("cuda") else None


def _record(part: PackedPart, tile: int, delta: Delta, encoded: Delta) -> None:
    """Add a packed tile to the part, if the tile changed."""
    if delta.changed:
        part.deltas[tile] = delta
        part.frames[tile] = frame = encoded.to_bytes()
        part.chunks.append(chunk_of(tile, delta, frame))


def chunk_of(tile: int, delta: Delta, frame: bytes) -> Chunk:
    """Return the manifest's entry for a frame."""
    return Chunk(tile, len(frame), delta.changed, hashlib.sha256(frame).digest(), delta.digest)
