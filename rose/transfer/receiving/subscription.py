"""The tiles that a receiver needs: all, or those of its shard."""

from collections.abc import Iterable

from rose.errors import InvalidArgument
from rose.transfer.digests import Digest, digest_sum, keyed
from rose.transfer.manifest import Chunk, Manifest
from rose.transfer.tiles import Tiles


class Subscription:
    """Some tiles of the weights, or all.

    Args:
        tiles: all tiles of the weights.
        subset: indices of the needed tiles; None for all.

    Raises:
        InvalidArgument: an index out of range.
    """

    def __init__(self, tiles: Tiles, subset: Iterable[int] | None = None) -> None:
        self.tiles = tiles
        self._subset = None if subset is None else frozenset(subset)
        if self._subset and not (min(self._subset) >= 0 and max(self._subset) < len(tiles)):
            raise InvalidArgument(
                f"tile {max(self._subset)} does not exist: the layout has {len(tiles)} tiles"
            )

    @property
    def is_all(self) -> bool:
        """Whether every tile is needed."""
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
        return digest_sum(keyed(tile, manifest.tile_digests[tile]) for tile in self.wanted)

    def base_digest_of(self, manifest: Manifest) -> Digest | None:
        """Return the digest of the needed tiles before a version; None if the manifest lacks it."""
        if manifest.is_announcement:
            return self.digest_of(manifest)
        return manifest.base_digest if self.is_all else None
