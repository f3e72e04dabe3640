"""The shelf: the kept updates of one chain, which receivers request and wait for."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.publishing.retention import Edge, Limits, to_forget
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.source import Frames

NO_VERSION: Final = -1


class Shelf(ABC):
    """Manifests of kept updates, their frames in a store, and an opening that stays.

    It is the source side of a log or a relay, for this process and for its server.

    Any thread may call. The lock guards the manifests and is not held over writes to the store; one
    thread at a time puts and trims.

    Args:
        store: store of the frames; updates already in it are adopted.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._manifests: dict[UpdateKey, Manifest] = {one.key: one for one in store.manifests()}
        self._opening = next(
            (one for one in reversed(self._manifests.values()) if one.is_announcement), None
        )

    @property
    def newest(self) -> Manifest | None:
        """Return a manifest of the newest version."""
        with self._changed:
            return self._manifests[max(self._manifests)] if self._manifests else None

    @property
    def newest_n(self) -> int:
        """Return the number of the newest version; -1 without versions."""
        with self._changed:
            return self._newest_n()

    @property
    def opening(self) -> Manifest | None:
        """Return the announcement of the chain's first version, if known."""
        with self._changed:
            return self._opening

    def edges(self) -> list[Edge]:
        """Return the kept updates, for retention."""
        with self._changed:
            keys = [one.key for one in self._manifests.values() if not one.is_announcement]
        return [Edge(key, self._store.nbytes_of(key)) for key in keys]

    def manifest(self, key: UpdateKey) -> Manifest | None:
        """Return the manifest of an update, if kept."""
        with self._changed:
            return self._manifests.get(key)

    def _put(self, manifest: Manifest, frames: Mapping[int, bytes]) -> None:
        """Keep an update, or more frames of one, and announce it.

        Raises:
            OutOfMemory: the store is full.
            Unavailable: the store cannot be written. The shelf is unchanged.
        """
        self._store.put(manifest, frames)
        self._show(manifest)

    def _show(self, manifest: Manifest) -> None:
        """Announce an update, whether or not its frames are here."""
        with self._changed:
            self._manifests[manifest.key] = manifest
            if manifest.is_announcement:
                self._opening = manifest
            self._changed.notify_all()

    def _forget(self, keys: Iterable[UpdateKey]) -> None:
        """Drop updates."""
        gone = list(keys)
        with self._changed:
            for key in gone:
                self._manifests.pop(key, None)
            if self._opening is not None and self._opening.key not in self._manifests:
                self._opening = None
        for key in gone:
            self._store.forget(key)

    def _forget_others(self, run: str, incarnation: int) -> None:
        """Drop updates of other chains."""
        with self._changed:
            others = [
                key
                for key, one in self._manifests.items()
                if (one.version.run, one.version.incarnation) != (run, incarnation)
            ]
        self._forget(others)

    def _trim_to(self, limits: Limits) -> None:
        """Enforce limits; the opening stays, since it has no frames."""
        opening = self.opening
        opening_n = None if opening is None else opening.version.n
        self._forget(to_forget(self.edges(), limits, newest_n=self.newest_n, opening_n=opening_n))

    def manifests_after(self, n: int) -> list[Manifest]:
        """Return the kept updates to versions above `n`, ascending."""
        with self._changed:
            return [self._manifests[key] for key in sorted(self._manifests) if key.n > n]

    def wait_manifests(
        self, after_n: int, timeout_s: float, *, is_over: Callable[[], bool] = lambda: False
    ) -> list[Manifest]:
        """Wait for a version above a number; return nothing on timeout.

        Args:
            after_n: number of the newest known version; -1 for none.
            timeout_s: longest wait, in seconds.
            is_over: checked after `wake`: whether to stop waiting.
        """
        with self._changed:
            self._changed.wait_for(lambda: is_over() or self._newest_n() > after_n, timeout_s)
        return self.manifests_after(after_n)

    def wake(self) -> None:
        """Make waiting threads check whether their wait is over."""
        with self._changed:
            self._changed.notify_all()

    def _newest_n(self) -> int:
        return max(self._manifests).n if self._manifests else NO_VERSION

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Yield the frames without copying."""
        for one in wanted:
            yield one.tile, self.chunk(key, one.tile)

    def break_off(self) -> None:  # noqa: B027  (a log has nothing to do)
        """Do nothing: local chunks never block."""

    @abstractmethod
    def chunk(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return the frame of a tile, counted as sent; None if it is not kept."""

    @abstractmethod
    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Make a snapshot; see `Source.snapshot`."""

    @abstractmethod
    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Record a receiver's outcome; see `Source.report`."""
