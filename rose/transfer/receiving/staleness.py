"""Staleness: how far weights are behind what is published."""

import threading
from dataclasses import dataclass
from typing import Final

from rose.clock import Clock
from rose.transfer.version import Version
from rose.units import NS_PER_S

# Versions whose arrival is remembered; of more, the oldest counts as the first of the rest.
SEEN_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind.

    Args:
        versions: published since the one that is held.
        seconds: since the first of those was seen; 0 where there is none.
    """

    versions: int
    seconds: float


class Staleness:
    """Compares what was seen with what was committed.

    Any thread may call; the lock guards what is known.

    Args:
        clock: of the seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: Version | None = None
        self._seen: dict[Version, int] = {}  # when each version after the held one was seen first

    def seen(self, version: Version) -> None:
        """Take a version that is published; one of a dead incarnation, or known, says nothing."""
        with self._lock:
            if self._is_news(version):
                self._seen = {one: at for one, at in self._seen.items() if _is_alive(one, version)}
                self._seen[version] = self._clock.now_ns()
                if len(self._seen) > SEEN_MAX:
                    del self._seen[min(self._seen)]

    def committed(self, version: Version) -> None:
        """Take the version that the weights are now, an older one too."""
        with self._lock:
            self._held = version
            self._seen = {one: at for one, at in self._seen.items() if _is_after(one, version)}

    def lag(self) -> Lag:
        """Return how far behind the weights are."""
        with self._lock:
            return self._lag(self._clock.now_ns())

    def _is_news(self, version: Version) -> bool:
        if version in self._seen or any(not _is_alive(version, one) for one in self._seen):
            return False
        return self._held is None or _is_after(version, self._held)

    def _lag(self, now_ns: int) -> Lag:
        if not self._seen:
            return Lag(0, 0.0)
        newest, first = max(self._seen), min(self._seen.values())
        is_chain = self._held is not None and self._held.run == newest.run
        versions = newest.n - self._held.n if is_chain and self._held else len(self._seen)
        return Lag(versions, (now_ns - first) / NS_PER_S)


def _is_alive(one: Version, other: Version) -> bool:
    """Whether `one` is not of an incarnation that `other` shows to be dead."""
    return one.run == other.run and one.incarnation >= other.incarnation


def _is_after(one: Version, held: Version) -> bool:
    """Whether weights that hold `held` are behind `one`."""
    if one.run != held.run:
        return True
    return (one.incarnation, one.n) > (held.incarnation, held.n)
