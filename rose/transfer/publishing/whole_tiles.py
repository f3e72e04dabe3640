"""Frames of versions that were made whole: what a late receiver is given first."""

from collections.abc import Mapping

from rose.transfer.manifest import UpdateKey


class WholeTiles:
    """Keeps whole tiles of some versions: who asks for one costs nobody that of another.

    The caller has a lock.
    """

    def __init__(self) -> None:
        self._frames: dict[UpdateKey, dict[int, bytes]] = {}  # the one asked for longest ago first
        self.nbytes = 0

    def get(self, key: UpdateKey, tile: int) -> bytes | None:
        """Return a frame that is kept."""
        return self._frames.get(key, {}).get(tile)

    def keep(self, key: UpdateKey, frames: Mapping[int, bytes], *, bytes_max: int) -> None:
        """Keep frames beside others, of which the oldest make room; these alone stay in any case.

        Of their own version all others go where there is no room for both.
        """
        self._frames[key] = {**self._frames.pop(key, {}), **frames}
        self._count()
        while self.nbytes > bytes_max and len(self._frames) > 1:
            del self._frames[next(iter(self._frames))]
            self._count()
        if self.nbytes > bytes_max:
            self._frames[key] = dict(frames)
            self._count()

    def clear(self) -> None:
        """Keep nothing."""
        self._frames, self.nbytes = {}, 0

    def _count(self) -> None:
        self.nbytes = sum(len(one) for some in self._frames.values() for one in some.values())
