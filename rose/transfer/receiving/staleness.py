"""Staleness: how far weights are behind the published versions."""

import threading
from dataclasses import dataclass
from typing import Final

from rose.clock import Clock
from rose.transfer.manifest import Version
from rose.units import NS_PER_S

# Most newer versions whose arrival is recorded; beyond this number the oldest are dropped.
SEEN_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Lag:
    """Distance to the newest version.

    Args:
        versions: number of published versions that are newer than the weights.
        seconds: time since the first of these versions was seen; 0 if there is none.
    """

    versions: int
    seconds: float


class Staleness:
    """Compares published versions with committed ones.

    Any thread may call; the lock guards all fields.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: Version | None = None
        self._seen: dict[Version, int] = {}  # time when each newer version was first seen

    def seen(self, version: Version) -> None:
        """Record a published version; known versions and dead incarnations are ignored."""
        with self._lock:
            if self._is_news(version):
                self._seen = {one: at for one, at in self._seen.items() if _is_alive(one, version)}
                self._seen[version] = self._clock.now_ns()
                if len(self._seen) > SEEN_MAX:
                    del self._seen[min(self._seen)]

    def committed(self, version: Version) -> None:
        """Record the current version of the weights, which may be an older one."""
        with self._lock:
            self._held = version
            self._seen = {one: at for one, at in self._seen.items() if _is_after(one, version)}

    def lag(self) -> Lag:
        """Return how far the weights are behind."""
        with self._lock:
            if not self._seen:
                return Lag(0, 0.0)
            newest, first = max(self._seen), min(self._seen.values())
            is_chain = self._held is not None and self._held.run == newest.run
            versions = newest.n - self._held.n if is_chain and self._held else len(self._seen)
            return Lag(versions, (self._clock.now_ns() - first) / NS_PER_S)

    def _is_news(self, version: Version) -> bool:
        if version in self._seen or any(not _is_alive(version, one) for one in self._seen):
            return False
        return self._held is None or _is_after(version, self._held)


def _is_alive(one: Version, other: Version) -> bool:
    """Return True if `one` is of the same run as `other`, and not of an older incarnation."""
    return one.run == other.run and one.incarnation >= other.incarnation


def _is_after(one: Version, held: Version) -> bool:
    """Return True if `one` is newer than `held`."""
    if one.run != held.run:
        return True
    return (one.incarnation, one.n) > (held.incarnation, held.n)
