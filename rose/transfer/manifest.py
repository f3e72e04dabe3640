"""What a version is made of: its manifest, and its chunks once they were received and checked."""

import hashlib
import hmac
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from typing_extensions import Buffer

from rose.errors import InvalidArgument
from rose.transfer.codec.delta import Delta
from rose.transfer.digests import Digest
from rose.transfer.tiles import is_layout
from rose.transfer.version import Version
from rose.units import MIB

MANIFEST_FORMAT: Final = 3
CHUNK_BYTES_MAX: Final = 4 * MIB
SHA256_BYTES: Final = 32
WHOLE: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class UpdateKey:
    """Names the chunks of one manifest: where it leads, and from where.

    Args:
        n: of the version.
        base_n: of the version that its deltas are for; -1 where its tiles are whole.
    """

    n: int
    base_n: int

    @property
    def is_whole(self) -> bool:
        """Whether its tiles are whole."""
        return self.base_n == WHOLE


@dataclass(frozen=True, slots=True)
class Chunk:
    """One tile of a version on the wire: the frame of a delta.

    Args:
        tile: which one.
        nbytes: of the frame.
        changed: elements of the tile that the delta changes.
        sha256: of the frame.
        digest: of the tile once the delta is applied.
    """

    tile: int
    nbytes: int
    changed: int
    sha256: bytes
    digest: Digest

    def __post_init__(self) -> None:
        """Refuse what no chunk can be.

        Raises:
            InvalidArgument: the sentence names the value.
        """
        if not 0 < self.nbytes <= CHUNK_BYTES_MAX:
            raise InvalidArgument(f"a chunk of {self.nbytes} bytes: at most {CHUNK_BYTES_MAX}")
        is_known = 0 <= self.tile < 1 << 32 and 0 <= self.changed < 1 << 63
        if not is_known or len(self.sha256) != SHA256_BYTES or not _is_digest(self.digest):
            raise InvalidArgument(f"tile {self.tile} has a chunk with fields that no chunk has")

    def is_of(self, frame: Buffer) -> bool:
        """Whether a frame is the one that was published."""
        nbytes = memoryview(frame).nbytes
        return nbytes == self.nbytes and hashlib.sha256(frame).digest() == self.sha256


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version: what it is, what it is made from, and which chunks make it.

    Args:
        version: its name.
        base: the version that its deltas are for, which may be several before it; None in a seed,
            whose tiles are whole: deltas from zeros. A manifest whose base is the version itself
            announces what is there.
        digest: of all the weights once it is applied.
        base_digest: of all of them before; (0, 0) in a seed.
        layout: how they are cut, as `Tiles` names it.
        tile_count: tiles there are.
        count: elements there are.
        chunks: of the tiles that change, ascending; in a seed, of those that were asked for.
        tile_digests: of every tile once it is applied; in announcements and seeds, else ().
        mac: of `fingerprint`, under a key that relays do not have; b"" where nobody has one.
        format: of this message.
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
        """Refuse what cannot be a version.

        Raises:
            InvalidArgument: the sentence says what is wrong.
        """
        if self.format != MANIFEST_FORMAT:
            raise InvalidArgument(
                f"the manifest has format {self.format}; this rose reads {MANIFEST_FORMAT}"
            )
        for one in (self.version, self.base):
            if one is not None and not (0 <= one.n < 1 << 63 and 0 <= one.incarnation < 1 << 63):
                raise InvalidArgument(f"version {one} has a number that no version has")
        if not is_layout(self.layout):
            raise InvalidArgument(f"layout '{self.layout}' is not 64 hexadecimal digits")
        if not _is_digest(self.digest) or not _is_digest(self.base_digest):
            raise InvalidArgument(f"{self.version} has digests that are none")
        if not 0 <= self.tile_count < 1 << 32 or not 0 <= self.count < 1 << 63:
            raise InvalidArgument(f"{self.version} has {self.tile_count} tiles of {self.count}")
        tiles = [chunk.tile for chunk in self.chunks]
        if any(one >= other for one, other in pairwise(tiles)):
            raise InvalidArgument(f"the chunks of {self.version} are not in order, each tile once")
        if tiles and tiles[-1] >= self.tile_count:
            raise InvalidArgument(
                f"{self.version} has a chunk for tile {tiles[-1]} of {self.tile_count}"
            )
        if len(self.tile_digests) not in (0, self.tile_count):
            raise InvalidArgument(
                f"{self.version} has {len(self.tile_digests)} digests for {self.tile_count} tiles"
            )

    @property
    def key(self) -> UpdateKey:
        """Return what its chunks are asked for by."""
        return UpdateKey(self.version.n, WHOLE if self.base is None else self.base.n)

    @property
    def is_seed(self) -> bool:
        """Whether its tiles are whole, so that any base will do."""
        return self.base is None

    @property
    def is_announcement(self) -> bool:
        """Whether it changes nothing and says what is there."""
        return self.base == self.version

    @property
    def nbytes(self) -> int:
        """Return the bytes of all chunks."""
        return sum(chunk.nbytes for chunk in self.chunks)

    @property
    def changed(self) -> int:
        """Return how many elements its deltas change."""
        return sum(chunk.changed for chunk in self.chunks)

    def fingerprint(self) -> bytes:
        """Return the SHA-256 of its message without `mac`, as docs/protocol.md says."""
        # Here, as that module imports this one.
        from rose.transfer.wire.manifest_message import to_bytes  # noqa: PLC0415

        return hashlib.sha256(to_bytes(self, is_signed=False)).digest()


@dataclass(frozen=True, slots=True)
class Signing:
    """What tells manifests of the publisher from those of anybody else.

    Args:
        key: that publishers and receivers share, and relays do not have; b"" signs nothing.
    """

    key: bytes = b""

    def signed(self, manifest: Manifest) -> Manifest:
        """Return the manifest with its MAC."""
        return replace(manifest, mac=self._mac(manifest)) if self.key else manifest

    def is_signed(self, manifest: Manifest) -> bool:
        """Whether the publisher signed it; without a key whatever comes counts as signed."""
        return not self.key or hmac.compare_digest(self._mac(manifest), manifest.mac)

    def _mac(self, manifest: Manifest) -> bytes:
        return hmac.digest(self.key, manifest.fingerprint(), hashlib.sha256)


UNSIGNED: Final = Signing()


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """A version with all of its deltas here and sound, ready to be committed.

    Args:
        manifest: what was published.
        deltas: (tile, delta) in the order of the manifest's chunks; of a receiver that subscribes
            to some tiles, of those.
    """

    manifest: Manifest
    deltas: tuple[tuple[int, Delta], ...]


def _is_digest(digest: Digest) -> bool:
    first, second = digest  # spelled out: it is asked of each of very many tiles
    return 0 <= first < 1 << 64 and 0 <= second < 1 << 64
