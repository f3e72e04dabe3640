"""The publisher: turns fresh weights into a version of the log, or leaves everything as it was."""

import hashlib
import threading
from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument, Unavailable
from rose.transfer.class_rule import class_rule
from rose.transfer.codec import delta_apply, delta_pack, digest
from rose.transfer.delta import BLOCK_ELEMENTS, ClassRule, Delta
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.log import VersionLog
from rose.transfer.manifest import Chunk, Manifest
from rose.transfer.strat import link_pack
from rose.transfer.tiles import TILE_ELEMENTS, Tile, Tiles
from rose.transfer.version import Version

Bits = npt.NDArray[np.uint16]


class Publisher:
    """Owns the shadow: the weights that receivers of the newest version hold.

    One thread publishes; the log may ask for a seed from any thread. The lock guards the shadow
    and everything said of it, so a seed is of one version and no mixture.

    Args:
        weights: (n,) uint16, the bits to begin with; copied.
        run: names the training run.
        incarnation: of the trainer, higher than any before it.
        first_version: the number of `weights`, above all that earlier incarnations used.
        log: gets what is published; one publisher has it.
        tile_elements: how the row is cut.
        block_elements: as for `delta_pack`.
        link: "strat" sends about a quarter fewer bytes, for a second pass over the weights on both
            sides: for links slower than that. Over loopback, "gap" is the faster one.
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
        link: Literal["gap", "strat"] = "gap",
    ) -> None:
        _check_row(weights)
        if link not in {"gap", "strat"}:
            raise InvalidArgument(f"link '{link}': choose gap or strat")
        if incarnation < 0 or first_version < 0:
            raise InvalidArgument(
                f"incarnation {incarnation} and first_version {first_version} must not be negative"
            )
        self._tiles = Tiles.of(len(weights), tile_elements)
        self._is_sound = True  # the shadow is the newest version
        self._block_elements = block_elements
        self._is_strat = link == "strat"
        self._log = log
        self._lock = threading.Lock()
        self._shadow = weights.copy()
        self._version = Version(run, incarnation, first_version)
        self._digests = TileDigests(self._digest_of(tile) for tile in self._tiles)
        opening = self._manifest(self._version, self._version, self._digests.total, ())
        log.open(opening, self.seed)

    @property
    def version(self) -> Version:
        """Return the newest version."""
        with self._lock:
            return self._version

    @property
    def tiles(self) -> Tiles:
        """Return how the row is cut."""
        return self._tiles

    def publish(self, new: Bits) -> Manifest:
        """Make `new` the next version.

        Args:
            new: (n,) uint16; read only.

        Raises:
            InvalidArgument: it is another row than the one to begin with.
            OutOfMemory: there is no room for it, here or in the log.
            Unavailable: the log is closed, or an earlier call was interrupted.
                After any error the version, the shadow and the log are as before. Where they may
                not be, as after an interrupt, nothing is published or seeded any more.
        """
        _check_row(new)
        if len(new) != self._tiles.count:
            raise InvalidArgument(f"{len(new)} elements are published as {self._tiles.count}")
        with self._lock:
            self._check_sound()
            deltas: dict[int, Delta] = {}
            # Until it is known to be: an interrupt may come between a change and what notes it.
            self._is_sound = False
            try:
                manifest = self._publish(new, deltas)
                self._is_sound = True
            finally:
                if not self._is_sound:  # whatever it was that failed
                    self._take_back(deltas)
            return manifest

    def _take_back(self, deltas: dict[int, Delta]) -> None:
        for tile, delta in deltas.items():
            delta_apply(self._shadow[self._tiles[tile].where], delta, undo=True)
        self._is_sound = all(
            self._digest_of(tile) == self._digests[tile.index] for tile in self._tiles
        )

    def _publish(self, new: Bits, deltas: dict[int, Delta]) -> Manifest:
        rule = class_rule(new, self._shadow) if self._is_strat else None
        frames: dict[int, bytes] = {}
        for tile in self._tiles:
            delta, link = self._pack_both(new[tile.where], self._shadow[tile.where], rule)
            if delta.changed:
                deltas[tile.index] = delta
                frames[tile.index] = link.to_bytes()
        parts = {tile: self._digest_of(self._tiles[tile]) for tile in deltas}
        version = Version(self._version.run, self._version.incarnation, self._version.n + 1)
        manifest = self._manifest(
            version,
            self._version,
            self._digests.total_with(parts),
            (_chunk(tile, deltas[tile], frame) for tile, frame in frames.items()),
        )
        self._log.append(manifest, frames)
        self._digests.update(parts)
        self._version = version
        return manifest

    def seed(self) -> tuple[Manifest, dict[int, bytes]]:
        """Return the newest version whole, as deltas from zeros, and its frames by tile.

        Raises:
            Unavailable: a call that published was interrupted.
        """
        with self._lock:
            self._check_sound()
            deltas = {
                tile.index: self._pack(self._shadow[tile.where], np.zeros(tile.count, np.uint16))
                for tile in self._tiles
            }
            frames = {tile: delta.to_bytes() for tile, delta in deltas.items()}
            chunks = (_chunk(tile, deltas[tile], frame) for tile, frame in frames.items())
            return self._manifest(self._version, None, self._digests.total, chunks), frames

    def _check_sound(self) -> None:
        if not self._is_sound:
            raise Unavailable(
                "publishing was interrupted, so the shadow may be no version: begin another "
                "incarnation"
            )

    def _pack(self, new: Bits, shadow: Bits) -> Delta:
        return delta_pack(new, shadow, block_elements=self._block_elements)

    def _pack_both(self, new: Bits, shadow: Bits, rule: ClassRule | None) -> tuple[Delta, Delta]:
        """Return what takes the shadow back, and what is sent."""
        if rule is None:
            delta = self._pack(new, shadow)
            return delta, delta
        return link_pack(new, shadow, rule, block_elements=self._block_elements)

    def _digest_of(self, tile: Tile) -> Digest:
        return digest(self._shadow[tile.where], first_index=tile.first)

    def _manifest(
        self, version: Version, base: Version | None, result: Digest, chunks: Iterable[Chunk]
    ) -> Manifest:
        return Manifest(
            version=version,
            base=base,
            digest=result,
            base_digest=(0, 0) if base is None else self._digests.total,
            count=self._tiles.count,
            tile_elements=self._tiles.tile_elements,
            chunks=tuple(chunks),
        )


def _chunk(tile: int, delta: Delta, frame: bytes) -> Chunk:
    return Chunk(tile, len(frame), delta.changed, hashlib.sha256(frame).digest())


def _check_row(weights: Bits) -> None:
    if weights.dtype != np.uint16 or weights.ndim != 1:
        raise InvalidArgument(
            f"weights of {weights.ndim} dimensions and {weights.dtype} must be one row of uint16"
        )
