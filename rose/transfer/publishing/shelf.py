"""The shelf: the updates of one chain that are kept, for receivers to ask for and to wait for."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rose.transfer.manifest import Manifest, UpdateKey
from rose.transfer.publishing.retention import Limits, Link, to_forget
from rose.transfer.publishing.store import MemoryStore

NO_VERSION: Final = -1


class Shelf:
    """Manifests of what is kept, their frames in a store, and an opening that stays.

    Any thread may call. The lock guards the manifests and is held over no call to the store that
    writes; one thread at a time puts and trims.

    Args:
        store: of the frames. What it has already is taken over.
    """

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
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

    @property
    def nbytes(self) -> int:
        """Return the bytes of all frames."""
        return self.store.nbytes

    def links(self) -> list[Link]:
        """Return what is kept as retention sees it."""
        with self._changed:
            keys = [one.key for one in self._manifests.values() if not one.is_announcement]
        return [Link(key, self.store.nbytes_of(key)) for key in keys]

    def manifest(self, key: UpdateKey) -> Manifest | None:
        """Return the manifest of an update that is kept."""
        with self._changed:
            return self._manifests.get(key)

    def put(self, manifest: Manifest, frames: Mapping[int, bytes]) -> None:
        """Keep an update, or more frames of one, and let everybody see it.

        Raises:
            OutOfMemory: the store has no room.
            Unavailable: the store cannot be written to. The shelf is as before.
        """
        self.store.put(manifest, frames)
        self.show(manifest)

    def show(self, manifest: Manifest) -> None:
        """Let everybody see an update, whether or not its frames are here."""
        with self._changed:
            self._manifests[manifest.key] = manifest
            if manifest.is_announcement:
                self._opening = manifest
            self._changed.notify_all()

    def forget(self, keys: Iterable[UpdateKey]) -> None:
        """Drop updates."""
        gone = list(keys)
        with self._changed:
            for key in gone:
                self._manifests.pop(key, None)
            if self._opening is not None and self._opening.key not in self._manifests:
                self._opening = None
        for key in gone:
            self.store.forget(key)

    def forget_others(self, run: str, incarnation: int) -> None:
        """Drop what is of another chain."""
        with self._changed:
            others = [
                key
                for key, one in self._manifests.items()
                if (one.version.run, one.version.incarnation) != (run, incarnation)
            ]
        self.forget(others)

    def trim(self, limits: Limits) -> None:
        """Keep to limits; the opening stays, for it has no frames."""
        opening = self.opening
        opening_n = None if opening is None else opening.version.n
        self.forget(to_forget(self.links(), limits, newest_n=self.newest_n, opening_n=opening_n))

    def manifests_after(self, n: int) -> list[Manifest]:
        """Return what is kept that leads above version `n`, ascending."""
        with self._changed:
            return [self._manifests[key] for key in sorted(self._manifests) if key.n > n]

    def wait_after(
        self, n: int, timeout_s: float, *, is_over: Callable[[], bool] = lambda: False
    ) -> list[Manifest]:
        """Wait for a version above `n`; nothing comes back when there was none in time.

        Args:
            n: of the newest version that is known; -1 for none.
            timeout_s: how long to wait.
            is_over: asked when `wake` is called: whether to wait no longer.
        """
        with self._changed:
            self._changed.wait_for(lambda: is_over() or self._newest_n() > n, timeout_s)
        return self.manifests_after(n)

    def wake(self) -> None:
        """Let whoever waits look whether the wait is over."""
        with self._changed:
            self._changed.notify_all()

    def _newest_n(self) -> int:
        return max(self._manifests).n if self._manifests else NO_VERSION
