"""Frames of one version that were made whole: what a late receiver is given first."""

from collections.abc import Mapping

from rose.transfer.manifest import UpdateKey


class WholeTiles:
    """Keeps whole tiles of one version; those of another one replace them.

    The caller has a lock.
    """

    def __init__(self) -> None:
        self._key: UpdateKey | None = None
        self._frames: dict[int, bytes] = {}
        self.nbytes = 0

    def get(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return a frame, if it is of the version that is kept."""
        return self._frames.get(tile) if key == self._key else None

    def keep(self, key: UpdateKey, frames: Mapping[int, bytes], *, bytes_max: int) -> None:
        """Keep frames beside those of the same version; alone where there is no room for both."""
        merged = {**self._frames, **frames} if key == self._key else dict(frames)
        if sum(map(len, merged.values())) > bytes_max:
            merged = dict(frames)
        self._key, self._frames = key, merged
        self.nbytes = sum(map(len, merged.values()))

    def clear(self) -> None:
        """Keep nothing."""
        self._key, self._frames, self.nbytes = None, {}, 0
