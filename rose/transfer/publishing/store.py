"""Stores: where the frames of updates are kept, in memory or, by `DiskStore`, on a disk."""

import threading
from collections.abc import Mapping

from rose.errors import CorruptData
from rose.transfer.manifest import Manifest, UpdateKey


class MemoryStore:
    """Manifests of updates, and frames of theirs, until the process ends. Any thread may call.

    What is put is there for whoever calls next, all of it, or on an error none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._updates: dict[UpdateKey, tuple[Manifest, dict[int, bytes]]] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Return the bytes of all frames."""
        with self._lock:
            return self._nbytes

    def put(self, manifest: Manifest, frames: Mapping[int, bytes]) -> None:
        """Keep frames, by tile, beside those of the update that are kept already.

        Raises:
            OutOfMemory: there is no room for them.
            Unavailable: the disk cannot be written to, or is too slow.
            CorruptData: a frame has another size than its chunk, or belongs to none.
        """
        check_sizes(manifest, frames)
        with self._lock:
            _, kept = self._updates.get(manifest.key, (manifest, {}))
            for tile, frame in frames.items():
                self._nbytes += len(frame) - len(kept.get(tile, b""))
                kept[tile] = frame
            self._updates[manifest.key] = (manifest, kept)

    def get(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return a frame; None where it is not kept.

        Raises:
            Unavailable: the disk cannot be read.
        """
        with self._lock:
            update = self._updates.get(key)
            return None if update is None else update[1].get(tile)

    def forget(self, key: UpdateKey) -> None:
        """Drop an update; one that is not there is as good as dropped."""
        with self._lock:
            if (update := self._updates.pop(key, None)) is not None:
                self._nbytes -= sum(map(len, update[1].values()))

    def trim(self, bytes_max: int, *, staying: UpdateKey | None = None) -> None:
        """Drop the lowest updates beyond a number of bytes, but for one."""
        for key in [one.key for one in self.manifests() if one.key != staying]:
            if self.nbytes <= bytes_max:
                return
            self.forget(key)

    def clear(self) -> None:
        """Drop all updates."""
        self.trim(-1)

    def manifests(self) -> list[Manifest]:
        """Return what there is, ascending by key."""
        with self._lock:
            return [self._updates[key][0] for key in sorted(self._updates)]

    def tiles(self, key: UpdateKey) -> frozenset[int]:
        """Return the tiles of which an update has frames here."""
        with self._lock:
            update = self._updates.get(key)
            return frozenset(() if update is None else update[1])

    def nbytes_of(self, key: UpdateKey) -> int:
        """Return the bytes of the frames of an update."""
        with self._lock:
            update = self._updates.get(key)
            return 0 if update is None else sum(map(len, update[1].values()))

    def close(self) -> None:
        """Join what it started, of which memory has nothing; nothing may be called after it."""


def check_sizes(manifest: Manifest, frames: Mapping[int, bytes]) -> None:
    """Refuse frames that are not of the sizes a manifest says.

    Raises:
        CorruptData: one is not, or is of no chunk.
    """
    sizes = {chunk.tile: chunk.nbytes for chunk in manifest.chunks}
    for tile, frame in frames.items():
        if sizes.get(tile) != len(frame):
            raise CorruptData(f"tile {tile} of {manifest.version} has {len(frame)} bytes")
