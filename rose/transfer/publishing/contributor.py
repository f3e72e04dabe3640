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
from rose.transfer.codec.operations import delta_apply, delta_pack, digests, pack_tiles
from rose.transfer.codec.strat import host_row, strat_pack
from rose.transfer.codec.tensor import bits_of, is_units
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import Chunk
from rose.transfer.publishing.selection import Drift, Selection, drift_of
from rose.transfer.tiles import Tiles, TileViews
from rose.units import ceil_div

Encoding: TypeAlias = Literal["gap", "strat"]
ENCODINGS: Final = ("gap", "strat")
NO_DRIFT: Final = Drift()
_BF16_BITS: Final = 16
# Tiles in one call. A call per tile would dominate, as a GPU makes each call wait. But a call takes
# twice as much device memory as its tiles: at most half a GiB.
_TILES_AT_ONCE: Final = 128


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
        self.encode_as(encoding)
        self.owned = range(len(tiles)) if owned is None else owned
        self._tiles = tiles
        self._shadow = shadow
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
        owned = list(self.owned)
        found = digests([shadow.bits(tile) for tile in owned])
        self.digests = TileDigests(dict(zip(owned, found, strict=True)))
        self._groups = [(way, list(some)) for way, some in groupby(owned, self._way)]

    def encode_as(self, encoding: Encoding) -> None:
        """Encode from the next pack on as given.

        Raises:
            InvalidArgument: the encoding is unknown.
        """
        if encoding not in ENCODINGS:
            raise InvalidArgument(f"encoding '{encoding}': choose gap or strat")
        self._is_strat = encoding == "strat"

    def begin(self, new: TileViews) -> None:
        """Do nothing: this contributor packs in the publisher's thread."""

    def pack(self, new: TileViews, part: PackedPart) -> None:
        """Pack every owned tile that changed into `part`, and update the shadow.

        Another thread may write `new` meanwhile: then the version has values from before and after
        the write, but receivers reach exactly what the shadow has.
        """
        rules = self._rules(new)
        for (gpu, width), tiles in self._groups:
            rule = rules.get(width)
            if tiles[0] in self._selections:
                for tile in tiles:
                    delta = self._pack_selected(_one_reading(new.bits(tile)), tile, part)
                    _record(part, {tile: delta} if delta.changed else {}, {})
                continue
            pack = self._pack_here if gpu is None else self._pack_on_gpu
            for at in range(0, len(tiles), _TILES_AT_ONCE):
                some = tiles[at : at + _TILES_AT_ONCE]
                pack([new.bits(tile) for tile in some], some, rule, part)

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
        found = digests([self._shadow.bits(tile) for tile in self.owned])
        return found == [self.digests[tile] for tile in self.owned]

    def whole(self, tile: int) -> Any:
        """Return the elements of a tile of the shadow as a row on the host, for reading at once."""
        bits = self._shadow.bits(tile)
        return bits.reshape(-1) if is_units(bits) else host_row(bits_of("shadow", bits))

    def _way(self, tile: int) -> tuple[str | None, int]:
        """Return what tiles must have in common to be packed in one call: GPU, and width."""
        if tile in self._selections:
            return None, 0
        return gpu_of(self._shadow.bits(tile)), self._tiles[tile].width

    def _pack_here(
        self, new: Sequence[Any], tiles: Sequence[int], rule: ClassRule | None, part: PackedPart
    ) -> None:
        deltas, encoded = pack_tiles(
            new,
            [self._shadow.bits(tile) for tile in tiles],
            base_digests=[self.digests[tile] for tile in tiles],
            rule=rule,
            threads=self._threads,
        )
        _record(
            part,
            {tiles[at]: delta for at, delta in deltas.items()},
            {tiles[at]: delta for at, delta in encoded.items()},
        )

    def _pack_on_gpu(
        self, new: Sequence[Any], tiles: Sequence[int], rule: ClassRule | None, part: PackedPart
    ) -> None:
        packed = delta_pack(
            {tile: _one_reading(bits) for tile, bits in zip(tiles, new, strict=True)},
            {tile: self._shadow.bits(tile) for tile in tiles},
            base_digest={tile: self.digests[tile] for tile in tiles},
        )
        changed = {tile: delta for tile, delta in packed.items() if delta.changed}
        part.deltas.update(changed)  # already in the shadow
        encoded = {}
        if rule is not None:
            for tile, delta in changed.items():
                encoded[tile] = strat_pack(delta, self._shadow.bits(tile), rule, is_after=True)
        _record(part, changed, encoded)

    def _pack_selected(self, new: Any, tile: int, part: PackedPart) -> Delta:
        shadow, ages = self._shadow.bits(tile), self._ages[tile]
        part.ages[tile] = ages.copy()
        delta = self._selections[tile].pack(new, shadow, ages, base_digest=self.digests[tile])
        part.drift += drift_of(new, shadow, ages)
        return delta

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
    if isinstance(bits, np.ndarray):
        return None
    place = str(getattr(bits, "device", "cpu"))
    return place if place.startswith("cuda") else None


def _one_reading(bits: Any) -> Any:
    """Return a copy of a tile on a GPU, whose kernels read an element several times."""
    return bits if gpu_of(bits) is None else bits.clone()


def _record(part: PackedPart, deltas: Mapping[int, Delta], encoded: Mapping[int, Delta]) -> None:
    """Add tiles that changed to the part; tiles that are not in `encoded` are sent as packed."""
    # Recorded first, so that all tiles can be undone if a frame fails.
    part.deltas.update(deltas)
    for tile, delta in deltas.items():
        part.frames[tile] = frame = encoded.get(tile, delta).to_bytes()
        part.chunks.append(chunk_of(tile, delta, frame))


def chunk_of(tile: int, delta: Delta, frame: bytes) -> Chunk:
    """Return the manifest's entry for a frame."""
    return Chunk(tile, len(frame), delta.changed, hashlib.sha256(frame).digest(), delta.digest)
