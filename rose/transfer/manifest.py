"""What a version is made of: its manifest, and its chunks once they were received and checked."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rose.errors import InvalidArgument
from rose.transfer.delta import Delta
from rose.transfer.digests import Digest
from rose.transfer.tiles import Tiles
from rose.transfer.version import Version
from rose.units import MIB

MANIFEST_FORMAT: Final = 1
CHUNK_BYTES_MAX: Final = 4 * MIB
SHA256_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Chunk:
    """One tile of a version on the wire: the frame of a delta.

    Args:
        tile: which one.
        nbytes: of the frame.
        changed: elements of the tile that the delta changes.
        sha256: of the frame.
    """

    tile: int
    nbytes: int
    changed: int
    sha256: bytes

    def __post_init__(self) -> None:
        """Refuse what no chunk can be.

        Raises:
            InvalidArgument: the sentence names the value.
        """
        if not 0 < self.nbytes <= CHUNK_BYTES_MAX:
            raise InvalidArgument(f"a chunk of {self.nbytes} bytes: at most {CHUNK_BYTES_MAX}")
        if not 0 <= self.tile < 1 << 32 or self.changed < 0 or len(self.sha256) != SHA256_BYTES:
            raise InvalidArgument(f"tile {self.tile} has a chunk with fields that no chunk has")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version: what it is, what it is made from, and which chunks make it.

    Args:
        version: its name.
        base: the version that its deltas are for; None in a seed, whose tiles are whole: deltas
            from zeros. A manifest whose base is the version itself announces what is there.
        digest: of the whole row once it is applied.
        base_digest: of the whole row before; (0, 0) in a seed.
        count: elements of the row.
        tile_elements: how the row is cut, as in `Tiles`.
        chunks: of the tiles that change, ascending; of every tile in a seed.
        format: of this message.
    """

    version: Version
    base: Version | None
    digest: Digest
    base_digest: Digest
    count: int
    tile_elements: int
    chunks: tuple[Chunk, ...]
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
        if not 0 <= self.version.n < 1 << 63:
            raise InvalidArgument(f"version {self.version} has a number that no version has")
        tiles = [chunk.tile for chunk in self.chunks]
        cut = len(self.tiles)
        if any(one >= other for one, other in pairwise(tiles)):
            raise InvalidArgument(f"the chunks of {self.version} are not in order, each tile once")
        if tiles and tiles[-1] >= cut:
            raise InvalidArgument(f"{self.version} has a chunk for tile {tiles[-1]} of {cut}")
        if self.is_seed and len(tiles) != cut:
            raise InvalidArgument(f"{self.version} is a seed with {len(tiles)} tiles of {cut}")

    @property
    def tiles(self) -> Tiles:
        """Return how the row is cut."""
        return Tiles(self.count, self.tile_elements)

    @property
    def is_seed(self) -> bool:
        """Whether it is whole, so that any base will do."""
        return self.base is None

    @property
    def nbytes(self) -> int:
        """Return the bytes of all chunks."""
        return sum(chunk.nbytes for chunk in self.chunks)

    @property
    def changed(self) -> int:
        """Return how many elements its deltas change."""
        return sum(chunk.changed for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """A version with all of its deltas here and sound, ready to be committed.

    Args:
        manifest: what was published.
        deltas: (tile, delta) in the order of the manifest's chunks.
    """

    manifest: Manifest
    deltas: tuple[tuple[int, Delta], ...]
