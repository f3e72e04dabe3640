"""The shelf: the updates of one chain that are kept here, for receivers to ask for and wait for."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.publishing.retention import Limits, Link, to_forget
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.source import Frames

NO_VERSION: Final = -1


class Shelf(ABC):
    """Manifests of what is kept, their frames in a store, and an opening that stays.

    It is the source that a log or a relay is, for this process and for a server of it.

    Any thread may call. The lock guards the manifests and is held over no call to the store that
    writes; one thread at a time puts and trims.

    Args:
        store: of the frames. What it has already is taken over.
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
        """Return the number of the newest version, -1 where there is none."""
        with self._changed:
            return self._newest_n()

    @property
    def opening(self) -> Manifest | None:
        """Return what the chain began with, as far as that is known."""
        with self._changed:
            return self._opening

    def links(self) -> list[Link]:
        """Return what is kept as retention sees it."""
        with self._changed:
            keys = [one.key for one in self._manifests.values() if not one.is_announcement]
        return [Link(key, self._store.nbytes_of(key)) for key in keys]

    def manifest(self, key: UpdateKey) -> Manifest | None:
        """Return the manifest of an update that is kept."""
        with self._changed:
            return self._manifests.get(key)

    def _put(self, manifest: Manifest, frames: Mapping[int, bytes]) -> None:
        """Keep an update, or more frames of one, and let everybody see it.

        Raises:
            OutOfMemory: the store has no room.
            Unavailable: the store cannot be written to. The shelf is as before.
        """
        self._store.put(manifest, frames)
        self._show(manifest)

    def _show(self, manifest: Manifest) -> None:
        """Let everybody see an update, whether or not its frames are here."""
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
        """Drop what is of another chain."""
        with self._changed:
            others = [
                key
                for key, one in self._manifests.items()
                if (one.version.run, one.version.incarnation) != (run, incarnation)
            ]
        self._forget(others)

    def _trim_to(self, limits: Limits) -> None:
        """Keep to limits; the opening stays, for it has no frames."""
        opening = self.opening
        opening_n = None if opening is None else opening.version.n
        self._forget(to_forget(self.links(), limits, newest_n=self.newest_n, opening_n=opening_n))

    def manifests_after(self, n: int) -> list[Manifest]:
        """Return what is kept that leads above version `n`, ascending."""
        with self._changed:
            return [self._manifests[key] for key in sorted(self._manifests) if key.n > n]

    def wait_manifests(
        self, after_n: int, timeout_s: float, *, is_over: Callable[[], bool] = lambda: False
    ) -> list[Manifest]:
        """Wait for a version above a number; nothing comes back when there was none in time.

        Args:
            after_n: of the newest version that is known; -1 for none.
            timeout_s: how long to wait.
            is_over: asked when `wake` is called: whether to wait no longer.
        """
        with self._changed:
            self._changed.wait_for(lambda: is_over() or self._newest_n() > after_n, timeout_s)
        return self.manifests_after(after_n)

    def wake(self) -> None:
        """Let whoever waits look whether the wait is over."""
        with self._changed:
            self._changed.notify_all()

    def _newest_n(self) -> int:
        return max(self._manifests).n if self._manifests else NO_VERSION

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Yield the frames as they lie here; nothing is copied."""
        for one in wanted:
            yield one.tile, self.chunk(key, one.tile)

    def break_off(self) -> None:  # noqa: B027  (a log has nothing to do)
        """Do nothing: chunks that are here keep nobody waiting."""

    @abstractmethod
    def chunk(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return the frame of a tile, or None when it is kept no more; it counts as sent."""

    @abstractmethod
    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a seed; see `Source.seed`."""

    @abstractmethod
    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Take what came of a version at a receiver; see `Source.report`."""
