"""The snapshots that a relay forwarded, so that their chunks can be requested again."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rose.transfer.manifest import Manifest, UpdateKey
from rose.transfer.publishing.store import MemoryStore
from rose.units import GIB

# Limit for whole tiles, in bytes.
WHOLE_BYTES_MAX: Final = GIB
# Enough for one snapshot per rank of a cluster whose ranks join at the same time. FIELDS_MAX limits
# all their chunks and tile digests, which then take at most about 600 MB.
SNAPSHOTS_MAX: Final = 64
FIELDS_MAX: Final = 1 << 22
# Most surveys. A survey is a snapshot without tiles, which only gives a version's digests.
SURVEYS_MAX: Final = 16


class SnapshotBook:
    """Manifests of the latest snapshots, and a store for whole tiles.

    Any thread may call; the lock guards the manifests.
    """

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._lock = threading.Lock()
        self._snapshots: dict[tuple[int, tuple[int, ...]], Manifest] = {}  # the oldest first

    def note(self, snapshot: Manifest) -> None:
        """Record a forwarded snapshot."""
        name = (snapshot.version.n, tuple(chunk.tile for chunk in snapshot.chunks))
        with self._lock:
            self._snapshots.pop(name, None)
            self._snapshots[name] = snapshot
            self._drop_beyond(is_survey=not snapshot.chunks)

    def _drop_beyond(self, *, is_survey: bool) -> None:
        """Drop the oldest snapshots with tiles, or the oldest surveys; the newest stays.

        Surveys are requested often. They do not displace snapshots with tiles, whose chunks are
        still being pulled.
        """
        alike = [name for name, one in self._snapshots.items() if is_survey != bool(one.chunks)]
        left, most = len(alike), SURVEYS_MAX if is_survey else SNAPSHOTS_MAX
        fields = sum(_fields_of(self._snapshots[name]) for name in alike)
        for name in alike[:-1]:
            if left <= most and fields <= FIELDS_MAX:
                return
            left, fields = left - 1, fields - _fields_of(self._snapshots.pop(name))

    def find(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a snapshot of version `n` with exactly these tiles; None means the latest."""
        with self._lock:
            found = [
                snapshot
                for (its_n, its_tiles), snapshot in self._snapshots.items()
                if its_tiles == tuple(tiles) and n in (None, its_n)
            ]
        return max(found, key=lambda one: one.version.n) if found else None

    def chunks(self, key: UpdateKey) -> Manifest | None:
        """Return an unsigned manifest with the chunks of all snapshots of a version."""
        with self._lock:
            snapshots = [snapshot for snapshot in self._snapshots.values() if snapshot.key == key]
        if not snapshots:
            return None
        chunks = {chunk.tile: chunk for snapshot in snapshots for chunk in snapshot.chunks}
        return replace(
            snapshots[-1], chunks=tuple(chunks[tile] for tile in sorted(chunks)), mac=b""
        )

    def forget(self, key: UpdateKey) -> None:
        """Drop the snapshots of a version; its whole tiles stay."""
        with self._lock:
            self._snapshots = {name: one for name, one in self._snapshots.items() if one.key != key}

    def clear(self) -> None:
        """Drop all snapshots and whole tiles."""
        with self._lock:
            self._snapshots.clear()
        self.store.clear()

    def trim(self) -> None:
        """Enforce the limit: the newest version's tiles stay longest."""
        self.store.trim(WHOLE_BYTES_MAX)


def _fields_of(snapshot: Manifest) -> int:
    return len(snapshot.chunks) + len(snapshot.tile_digests)
