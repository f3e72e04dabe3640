"""The seeds that a relay forwarded, so that their chunks can be asked for, and given again."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rose.transfer.manifest import Manifest, UpdateKey
from rose.transfer.publishing.store import MemoryStore
from rose.units import GIB

# Of whole tiles.
WHOLE_BYTES_MAX: Final = GIB
# One for each rank of a cluster that joins at once; of their fields, as many as 600 MB hold.
SEEDS_MAX: Final = 64
FIELDS_MAX: Final = 1 << 22
# Seeds of no tiles, which only say what a version is.
SURVEYS_MAX: Final = 16


class SeedBook:
    """Manifests of the latest seeds, and a store for whole tiles.

    Any thread may call; the lock guards the manifests.
    """

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._lock = threading.Lock()
        self._seeds: dict[tuple[int, tuple[int, ...]], Manifest] = {}  # the oldest first

    def note(self, seed: Manifest) -> None:
        """Take a seed that was forwarded."""
        name = (seed.version.n, tuple(chunk.tile for chunk in seed.chunks))
        with self._lock:
            self._seeds.pop(name, None)
            self._seeds[name] = seed
            self._drop_beyond(is_survey=not seed.chunks)

    def _drop_beyond(self, *, is_survey: bool) -> None:
        """Drop the oldest seeds, or the oldest surveys; the newest one stays.

        A survey drops no seed: it is asked for often, and somebody pulls a seed's chunks.
        """
        alike = [name for name, one in self._seeds.items() if is_survey != bool(one.chunks)]
        left, most = len(alike), SURVEYS_MAX if is_survey else SEEDS_MAX
        fields = sum(_fields_of(self._seeds[name]) for name in alike)
        for name in alike[:-1]:
            if left <= most and fields <= FIELDS_MAX:
                return
            left, fields = left - 1, fields - _fields_of(self._seeds.pop(name))

    def find(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a seed of a version with just these tiles; of the latest one where n is None."""
        with self._lock:
            found = [
                seed
                for (its_n, its_tiles), seed in self._seeds.items()
                if its_tiles == tuple(tiles) and n in (None, its_n)
            ]
        return max(found, key=lambda one: one.version.n) if found else None

    def chunks(self, key: UpdateKey) -> Manifest | None:
        """Return a manifest with the chunks of all seeds of a version; nobody signed it."""
        with self._lock:
            seeds = [seed for seed in self._seeds.values() if seed.key == key]
        if not seeds:
            return None
        chunks = {chunk.tile: chunk for seed in seeds for chunk in seed.chunks}
        return replace(seeds[-1], chunks=tuple(chunks[tile] for tile in sorted(chunks)), mac=b"")

    def forget(self, key: UpdateKey) -> None:
        """Drop the seeds of a version; whole tiles that are here stay."""
        with self._lock:
            self._seeds = {name: one for name, one in self._seeds.items() if one.key != key}

    def clear(self) -> None:
        """Drop all seeds and all whole tiles."""
        with self._lock:
            self._seeds.clear()
        self.store.clear()

    def trim(self) -> None:
        """Keep to the limit: the newest version's tiles stay longest."""
        self.store.trim(WHOLE_BYTES_MAX)


def _fields_of(seed: Manifest) -> int:
    return len(seed.chunks) + len(seed.tile_digests)
