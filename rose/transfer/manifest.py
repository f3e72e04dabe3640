"""A version on the wire: its name, manifest and chunks, and the tiles that a receiver needs."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from typing_extensions import Buffer

from rose.errors import InvalidArgument
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import digest
from rose.transfer.digests import Digest, TileDigests, digest_sum
from rose.transfer.tiles import Tiles, is_layout
from rose.units import MIB

MANIFEST_FORMAT: Final = 3
CHUNK_BYTES_MAX: Final = 4 * MIB
SHA256_BYTES: Final = 32
# A whole tile is sent as its elements and a MAC of this size, which is zeros without a key.
TILE_MAC_BYTES: Final = 32
WHOLE: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Name of one state of the weights.

    Args:
        run: name of the training run.
        incarnation: number of the trainer process; a restarted trainer has a higher number.
        n: version number, which grows within the run and is never reused by any incarnation; tokens
            are stamped with it.
    """

    run: str
    incarnation: int
    n: int

    def __str__(self) -> str:
        return f"{self.run}/{self.incarnation}.{self.n}"


NAMELESS: Final = Version("", 0, 0)
"""Version of weights that have not been published yet."""


@dataclass(frozen=True, slots=True, order=True)
class UpdateKey:
    """Identifies the chunks of one manifest: its version and its base.

    Args:
        n: number of the version.
        base_n: number of the base version; -1 if the chunks hold whole tiles.
    """

    n: int
    base_n: int

    @property
    def is_whole(self) -> bool:
        """True if the chunks hold whole tiles, which need no base."""
        return self.base_n == WHOLE


@dataclass(frozen=True, slots=True)
class Chunk:
    """Description of one frame of a version.

    A frame is the delta of one tile, as bytes. In a snapshot it is the whole tile: its elements,
    and `TILE_MAC_BYTES` of MAC.

    Args:
        tile: index of the tile.
        nbytes: size of the frame in bytes.
        changed: number of elements that the delta changes; in a snapshot, all of them.
        sha256: SHA-256 of the frame; b"" in a snapshot, whose frames are made when they are sent.
        digest: digest of the tile in this version.
    """

    tile: int
    nbytes: int
    changed: int
    sha256: bytes
    digest: Digest

    def __post_init__(self) -> None:
        """Check the ranges of the fields.

        Raises:
            InvalidArgument: a field is out of range; the message names the tile or the size.
        """
        if not 0 < self.nbytes <= CHUNK_BYTES_MAX:
            raise InvalidArgument(
                f"a chunk must have 1 to {CHUNK_BYTES_MAX} bytes, got {self.nbytes}"
            )
        is_known = 0 <= self.tile < 1 << 32 and 0 <= self.changed < 1 << 63
        is_hash = len(self.sha256) in (0, SHA256_BYTES)
        if not is_known or not is_hash or not _is_digest(self.digest):
            raise InvalidArgument(
                f"the chunk of tile {self.tile} has a field out of range: tile must be below 2^32, "
                "changed below 2^63, sha256 0 or 32 bytes, and digest two 64-bit numbers"
            )

    @property
    def is_whole(self) -> bool:
        """True if the frame is a whole tile."""
        return not self.sha256

    def is_of(self, frame: Buffer) -> bool:
        """Return True if a frame has the published size, and the SHA-256 or the tile's digest."""
        content = memoryview(frame).cast("B")
        if content.nbytes != self.nbytes:
            return False
        if not self.is_whole:
            return hashlib.sha256(content).digest() == self.sha256
        return digest(np.frombuffer(content[:-TILE_MAC_BYTES], np.uint8)) == self.digest


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version: its name, its base, and its chunks.

    Args:
        base: version to which the deltas apply, possibly several versions older; None in a
            snapshot, whose chunks are whole tiles. A manifest whose base is its own version is an
            announcement: it changes nothing and states the current version.
        digest: digest of all weights after this version is applied.
        base_digest: digest of all weights before this version is applied; (0, 0) in a snapshot.
        layout: layout id of `Tiles`.
        tile_count: number of tiles of the layout.
        count: number of elements of the layout.
        chunks: chunks of the changed tiles, ascending; a snapshot has those of the requested tiles.
        tile_digests: digest of every tile after this version is applied; only in announcements and
            snapshots, otherwise ().
        mac: MAC of the `signing.fingerprint` with a key that relays do not have; b"" without a key.
        format: format number of this message.
    """

    version: Version
    base: Version | None
    digest: Digest
    base_digest: Digest
    layout: str
    tile_count: int
    count: int
    chunks: tuple[Chunk, ...]
    tile_digests: tuple[Digest, ...] = ()
    mac: bytes = b""
    format: int = MANIFEST_FORMAT

    def __post_init__(self) -> None:
        """Check that the fields are consistent.

        Raises:
            InvalidArgument: a field contradicts the others; the message names it.
        """
        if self.format != MANIFEST_FORMAT:
            raise InvalidArgument(
                f"the manifest has format {self.format}; this rose reads {MANIFEST_FORMAT}"
            )
        for one in (self.version, self.base):
            if one is not None and not (0 <= one.n < 1 << 63 and 0 <= one.incarnation < 1 << 63):
                raise InvalidArgument(f"the numbers of version {one} must be from 0 to 2^63 - 1")
        if not is_layout(self.layout):
            raise InvalidArgument(f"layout '{self.layout}' is not 64 hexadecimal digits")
        if not _is_digest(self.digest) or not _is_digest(self.base_digest):
            raise InvalidArgument(
                f"version {self.version} has a digest that is not two 64-bit numbers"
            )
        if not 0 <= self.tile_count < 1 << 32 or not 0 <= self.count < 1 << 63:
            raise InvalidArgument(
                f"version {self.version} must have fewer than 2^32 tiles and 2^63 elements, got "
                f"{self.tile_count} and {self.count}"
            )
        if any(chunk.is_whole is not self.is_snapshot for chunk in self.chunks):
            raise InvalidArgument(
                f"version {self.version} must have SHA-256s of its chunks, and a snapshot none"
            )
        tiles = [chunk.tile for chunk in self.chunks]
        if any(one >= other for one, other in pairwise(tiles)):
            raise InvalidArgument(
                f"the chunks of version {self.version} must ascend by tile, each tile once"
            )
        if tiles and tiles[-1] >= self.tile_count:
            raise InvalidArgument(
                f"version {self.version} has a chunk for tile {tiles[-1]}, but only "
                f"{self.tile_count} tiles"
            )
        if len(self.tile_digests) not in (0, self.tile_count):
            raise InvalidArgument(
                f"version {self.version} must have 0 or {self.tile_count} tile digests, got "
                f"{len(self.tile_digests)}"
            )

    @property
    def key(self) -> UpdateKey:
        """Return the key with which the chunks are requested."""
        return UpdateKey(self.version.n, WHOLE if self.base is None else self.base.n)

    @property
    def is_snapshot(self) -> bool:
        """True if this is a snapshot: whole tiles, which need no base."""
        return self.base is None

    @property
    def is_announcement(self) -> bool:
        """True if this manifest changes nothing and states the current version."""
        return self.base == self.version

    @property
    def nbytes(self) -> int:
        """Return the size of all chunks, in bytes."""
        return sum(chunk.nbytes for chunk in self.chunks)

    @property
    def changed(self) -> int:
        """Return the number of elements that the deltas change."""
        return sum(chunk.changed for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """A version whose chunks have all been received and checked, ready to be committed.

    Args:
        manifest: manifest as published.
        deltas: (tile, delta) in the order of the manifest's chunks; only subscribed tiles. () in a
            snapshot.
        whole: elements of each staged tile of a snapshot, on the host. A commit exchanges them with
            the tile's present elements.
        digests: in a snapshot, digests of all subscribed tiles in this version.
    """

    manifest: Manifest
    deltas: tuple[tuple[int, Delta], ...] = ()
    whole: dict[int, Any] = field(default_factory=dict)
    digests: TileDigests | None = None

    @property
    def tiles(self) -> tuple[int, ...]:
        """Return the tiles to change, in order."""
        return tuple(tile for tile, _ in self.deltas) or tuple(self.whole)


class Subscription:
    """The tiles that a receiver needs: some tiles of the weights, or all.

    Args:
        tiles: all tiles of the weights.
        subset: indices of the needed tiles; None for all.

    Raises:
        InvalidArgument: an index is out of range.
    """

    def __init__(self, tiles: Tiles, subset: Iterable[int] | None = None) -> None:
        self.tiles = tiles
        self._subset = None if subset is None else frozenset(subset)
        if self._subset and not (min(self._subset) >= 0 and max(self._subset) < len(tiles)):
            raise InvalidArgument(
                f"tile indices must be from 0 to {len(tiles) - 1}, got {min(self._subset)} to "
                f"{max(self._subset)}"
            )

    @property
    def is_all(self) -> bool:
        """True if every tile is needed."""
        return self._subset is None or len(self._subset) == len(self.tiles)

    @property
    def wanted(self) -> tuple[int, ...]:
        """Return the indices of the needed tiles, ascending."""
        return tuple(range(len(self.tiles)) if self._subset is None else sorted(self._subset))

    def __contains__(self, tile: int) -> bool:
        return self._subset is None or tile in self._subset

    def chunks_of(self, manifest: Manifest) -> list[Chunk]:
        """Return the chunks of needed tiles."""
        return [chunk for chunk in manifest.chunks if chunk.tile in self]

    def digest_of(self, manifest: Manifest) -> Digest | None:
        """Return the digest of the needed tiles after a version; None if the manifest lacks it."""
        if self.is_all:
            return manifest.digest
        if not manifest.tile_digests:
            return None
        return digest_sum({tile: manifest.tile_digests[tile] for tile in self.wanted})

    def base_digest_of(self, manifest: Manifest) -> Digest | None:
        """Return the digest of the needed tiles before a version; None if the manifest lacks it."""
        if manifest.is_announcement:
            return self.digest_of(manifest)
        return manifest.base_digest if self.is_all else None


def _is_digest(digest: Digest) -> bool:
    first, second = digest  # unrolled: this runs for each of very many tiles
    return 0 <= first < 1 << 64 and 0 <= second < 1 << 64
