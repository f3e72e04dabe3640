"""Stores for the frames of updates: in memory or, with `DiskStore`, on disk."""

import threading
from collections.abc import Mapping

from rose.errors import CorruptData
from rose.transfer.manifest import Manifest, UpdateKey


class MemoryStore:
    """Manifests of updates and their frames, until the process ends. Any thread may call.

    The next call sees all frames of a put; after a failed put, none of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._updates: dict[UpdateKey, tuple[Manifest, dict[int, bytes]]] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Return the size of all frames, in bytes."""
        with self._lock:
            return self._nbytes

    def put(self, manifest: Manifest, frames: Mapping[int, bytes]) -> None:
        """Store frames, by tile, in addition to the update's existing frames.

        Raises:
            OutOfMemory: the store is full.
            Unavailable: the disk cannot be written, or is too slow.
            CorruptData: a frame differs in size from its chunk, or has no chunk.
        """
        check_sizes(manifest, frames)
        with self._lock:
            _, kept = self._updates.get(manifest.key, (manifest, {}))
            for tile, frame in frames.items():
                self._nbytes += len(frame) - len(kept.get(tile, b""))
                kept[tile] = frame
            self._updates[manifest.key] = (manifest, kept)

    def get(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return a frame; None if it is not kept.

        Raises:
            Unavailable: the disk cannot be read.
        """
        with self._lock:
            update = self._updates.get(key)
            return None if update is None else update[1].get(tile)

    def forget(self, key: UpdateKey) -> None:
        """Drop an update, if it exists."""
        with self._lock:
            if (update := self._updates.pop(key, None)) is not None:
                self._nbytes -= sum(map(len, update[1].values()))

    def trim(self, bytes_max: int) -> None:
        """Drop the updates with the lowest keys until `bytes_max` is met."""
        for one in self.manifests():
            if self.nbytes <= bytes_max:
                return
            self.forget(one.key)

    def clear(self) -> None:
        """Drop all updates."""
        self.trim(-1)

    def manifests(self) -> list[Manifest]:
        """Return all manifests, ascending by key."""
        with self._lock:
            return [self._updates[key][0] for key in sorted(self._updates)]

    def nbytes_of(self, key: UpdateKey) -> int:
        """Return the size of the frames of an update, in bytes."""
        with self._lock:
            update = self._updates.get(key)
            return 0 if update is None else sum(map(len, update[1].values()))

    def close(self) -> None:
        """Release threads and files; nothing may be called after it."""


def check_sizes(manifest: Manifest, frames: Mapping[int, bytes]) -> None:
    """Check the sizes of frames against a manifest.

    Raises:
        CorruptData: a size differs, or the manifest has no chunk for a frame.
    """
    sizes = {chunk.tile: chunk.nbytes for chunk in manifest.chunks}
    for tile, frame in frames.items():
        if sizes.get(tile) != len(frame):
            raise CorruptData(
                f"tile {tile} of version {manifest.version} must have {sizes.get(tile, 0)} bytes, "
                f"got {len(frame)}"
            )
