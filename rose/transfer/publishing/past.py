"""What led from a version to the newest one, as far as the log still has it."""

from rose.transfer.codec.delta import Delta, frame_digests
from rose.transfer.digests import Digest
from rose.transfer.manifest import UpdateKey
from rose.transfer.publishing.log import VersionLog


class Past:
    """The single versions since one, read from the log once each, so that they can be undone.

    One thread uses it, and nobody publishes meanwhile.

    Args:
        log: that has them.
        n: of the version to go back to.
    """

    def __init__(self, log: VersionLog, n: int) -> None:
        self._log = log
        self._newest_n = n
        self._before: dict[int, Digest] = {}
        self._since: list[dict[int, Delta]] = []  # ascending

    def extend(self, newest_n: int) -> bool:
        """Read what came since; False where the log has too little, or none that can be undone."""
        for n in range(self._newest_n + 1, newest_n + 1):
            frames = self._log.frames(UpdateKey(n, n - 1))
            if frames is None:
                return False
            deltas = {tile: Delta.from_bytes(frame) for tile, frame in frames.items()}
            if any(delta.rule is not None for delta in deltas.values()):
                return False  # what went over a slow link is read from its base only
            for tile, frame in frames.items():
                self._before.setdefault(tile, frame_digests(frame)[0])
            self._since.append(deltas)
            self._newest_n = n
        return True

    def digests(self) -> dict[int, Digest]:
        """Return the digests before, of the tiles that have changed since."""
        return dict(self._before)

    def undone(self) -> list[dict[int, Delta]]:
        """Return what leads back, the last version first."""
        return self._since[::-1]
