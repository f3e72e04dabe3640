"""The snapshots that a relay forwarded, so that their chunks can be requested again."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rose.transfer.manifest import Manifest, UpdateKey
from rose.transfer.publishing.store import MemoryStore
from rose.units import GIB

# Limit for whole tiles.
WHOLE_BYTES_MAX: Final = GIB
# One per rank of a cluster that joins at once; their fields take at most about 600 MB.
SEEDS_MAX: Final = 64
FIELDS_MAX: Final = 1 << 22
# Snapshots without tiles, which only give a version's digests.
SURVEYS_MAX: Final = 16


class SeedBook:
    """Manifests of the latest snapshots, and a store for whole tiles.

    Any thread may call; the lock guards the manifests.
    """

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._lock = threading.Lock()
        self._seeds: dict[tuple[int, tuple[int, ...]], Manifest] = {}  # the oldest first

    def note(self, seed: Manifest) -> None:
        """Record a forwarded snapshot."""
        name = (seed.version.n, tuple(chunk.tile for chunk in seed.chunks))
        with self._lock:
            self._seeds.pop(name, None)
            self._seeds[name] = seed
            self._drop_beyond(is_survey=not seed.chunks)

    def _drop_beyond(self, *, is_survey: bool) -> None:
        """Drop the oldest snapshots, or the oldest surveys; the newest one stays.

        Surveys, which are requested often, do not displace snapshots, whose chunks are still
        pulled.
        """
        alike = [name for name, one in self._seeds.items() if is_survey != bool(one.chunks)]
        left, most = len(alike), SURVEYS_MAX if is_survey else SEEDS_MAX
        fields = sum(_fields_of(self._seeds[name]) for name in alike)
        for name in alike[:-1]:
            if left <= most and fields <= FIELDS_MAX:
                return
            left, fields = left - 1, fields - _fields_of(self._seeds.pop(name))

    def find(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a snapshot with exactly these tiles, of version n or for None the latest."""
        with self._lock:
            found = [
                seed
                for (its_n, its_tiles), seed in self._seeds.items()
                if its_tiles == tuple(tiles) and n in (None, its_n)
            ]
        return max(found, key=lambda one: one.version.n) if found else None

    def chunks(self, key: UpdateKey) -> Manifest | None:
        """Return an unsigned manifest with the chunks of all snapshots of a version."""
        with self._lock:
            seeds = [seed for seed in self._seeds.values() if seed.key == key]
        if not seeds:
            return None
        chunks = {chunk.tile: chunk for seed in seeds for chunk in seed.chunks}
        return replace(seeds[-1], chunks=tuple(chunks[tile] for tile in sorted(chunks)), mac=b"")

    def forget(self, key: UpdateKey) -> None:
        """Drop the snapshots of a version; its whole tiles stay."""
        with self._lock:
            self._seeds = {name: one for name, one in self._seeds.items() if one.key != key}

    def clear(self) -> None:
        """Drop all snapshots and whole tiles."""
        with self._lock:
            self._seeds.clear()
        self.store.clear()

    def trim(self) -> None:
        """Enforce the limit: the newest version's tiles stay longest."""
        self.store.trim(WHOLE_BYTES_MAX)


def _fields_of(seed: Manifest) -> int:
    return len(seed.chunks) + len(seed.tile_digests)
