"""Staleness: how far weights are behind what is published, for whoever schedules by it."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rose.clock import Clock
from rose.errors import InvalidArgument
from rose.transfer.version import Version
from rose.units import NS_PER_S

CROSSINGS_MAX: Final = 256
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


@dataclass(frozen=True, slots=True)
class Crossing:
    """Weights became stale, or are not any more.

    Args:
        at_ns: of the clock.
        is_stale: what they are from then on.
        lag: at that time.
    """

    at_ns: int
    is_stale: bool
    lag: Lag


class Staleness:
    """Compares what was seen with what was committed, against two limits.

    Any thread may call; the lock guards what is known. It has no thread of its own: time alone
    makes weights stale only when somebody calls, so whoever depends on that calls `look`.

    Args:
        max_lag_versions: more versions behind than that is stale, 0 or more.
        max_lag_seconds: so is longer behind than that, > 0.
        clock: of the seconds.
        on_crossing: called each time that it changes, both ways, by the thread that found it,
            without a lock, in order.
    """

    def __init__(
        self,
        *,
        max_lag_versions: int,
        max_lag_seconds: float,
        clock: Clock,
        on_crossing: Callable[[Crossing], None] = lambda _: None,
    ) -> None:
        if max_lag_versions < 0 or not max_lag_seconds > 0:
            raise InvalidArgument(
                f"weights {max_lag_versions} versions and {max_lag_seconds} s behind are always "
                "stale: allow more"
            )
        self._max_versions = max_lag_versions
        self._max_seconds = max_lag_seconds
        self._clock = clock
        self._on_crossing = on_crossing
        self._telling = threading.RLock()  # so that callbacks come in order
        self._lock = threading.Lock()
        self._held: Version | None = None
        self._seen: dict[Version, int] = {}  # when each version after the held one was seen first
        self._is_stale = False
        self._crossings: deque[Crossing] = deque(maxlen=CROSSINGS_MAX)

    def seen(self, version: Version) -> None:
        """Take a version that is published; one of a dead incarnation, or known, says nothing."""
        with self._lock:
            if self._is_news(version):
                self._seen = {one: at for one, at in self._seen.items() if _is_alive(one, version)}
                self._seen[version] = self._clock.now_ns()
                if len(self._seen) > SEEN_MAX:
                    del self._seen[min(self._seen)]
        self.look()

    def committed(self, version: Version) -> None:
        """Take the version that the weights are now, an older one too."""
        with self._lock:
            self._held = version
            self._seen = {one: at for one, at in self._seen.items() if _is_after(one, version)}
        self.look()

    def lag(self) -> Lag:
        """Return how far behind the weights are."""
        with self._lock:
            return self._lag(self._clock.now_ns())

    @property
    def is_stale(self) -> bool:
        """Return whether they are over a limit."""
        return self.look()

    def crossings(self) -> list[Crossing]:
        """Return the latest changes, the oldest first."""
        with self._lock:
            return list(self._crossings)

    def look(self) -> bool:
        """Compare again, now; tell if it changed, and return whether the weights are stale."""
        with self._telling:
            with self._lock:
                now_ns = self._clock.now_ns()
                lag = self._lag(now_ns)
                is_stale = lag.versions > self._max_versions or lag.seconds > self._max_seconds
                has_changed, self._is_stale = is_stale != self._is_stale, is_stale
                crossing = Crossing(now_ns, is_stale, lag)
                if has_changed:
                    self._crossings.append(crossing)
            if has_changed:
                self._on_crossing(crossing)
        return is_stale

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
