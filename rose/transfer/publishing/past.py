"""The versions since the snapshots that receivers still fetch, kept so that they can be undone."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rose.clock import Clock
from rose.transfer.codec.delta import Delta
from rose.transfer.digests import Digest
from rose.transfer.manifest import UpdateKey
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.merger import merged_deltas
from rose.units import NS_PER_S

# A snapshot of which no tile was requested for this time is no longer in use. A receiver tries
# again at least every 2 s, and a relay waits 10 s for its upstream.
IDLE_S: Final = 20.0
# Snapshots in use beyond the oldest one that are kept apart when deltas are merged.
APART_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class _Step:
    """The deltas from version `base_n` to version `n`, by tile, before wire encoding."""

    base_n: int
    n: int
    deltas: Mapping[int, Delta]


class Past:
    """The deltas from the oldest snapshot in use to the newest version.

    While no snapshot is in use nothing is kept, and older versions are read from the log, unless
    they are STRAT deltas, which only their base can decode. Above the limit the oldest deltas are
    merged, but not across a snapshot in use. So snapshots in use can be fetched to their end, and
    for each of them the deltas of a tile take at most about the tile's size beyond the limit.

    The caller's lock guards it.

    Args:
        log: log of the versions.
        n: number of the newest version.
        bytes_max: limit for the deltas, in bytes.
        clock: clock of the idle time.
    """

    def __init__(self, log: VersionLog, n: int, *, bytes_max: int, clock: Clock) -> None:
        self._log = log
        self._newest_n = n
        self._bytes_max = bytes_max
        self._clock = clock
        self._steps: deque[_Step] = deque()  # contiguous, the newest last
        self._used_ns: dict[int, int] = {}  # by n, when the snapshot was last used

    def add(self, n: int, deltas: Mapping[int, Delta]) -> None:
        """Record a published version."""
        idle_ns = self._clock.now_ns() - int(IDLE_S * NS_PER_S)
        self._used_ns = {one: at for one, at in self._used_ns.items() if at >= idle_ns}
        self._steps.append(_Step(self._newest_n, n, deltas))
        self._newest_n = n
        oldest = min(self._used_ns, default=n)
        while self._steps and self._steps[0].n <= oldest:
            self._steps.popleft()
        while self._nbytes() > self._bytes_max and (at := self._mergeable()) is not None:
            one, other = self._steps[at], self._steps[at + 1]
            self._steps[at] = _Step(one.base_n, other.n, merged_deltas(one.deltas, other.deltas))
            del self._steps[at + 1]

    def _mergeable(self) -> int | None:
        """Return the index of the oldest step that can be merged with the next one."""
        apart = sorted(self._used_ns)[-APART_MAX:]
        steps = range(len(self._steps) - 1)
        return next((at for at in steps if self._steps[at].n not in apart), None)

    def reaches(self, n: int) -> bool:
        """Return whether version `n` can be restored; if so, it is in use from now on."""
        while (base_n := self._steps[0].base_n if self._steps else self._newest_n) > n:
            deltas = self._logged(base_n)
            if deltas is None:
                return False
            self._steps.appendleft(_Step(base_n - 1, base_n, deltas))
        if n != self._newest_n and all(one.base_n != n for one in self._steps):
            return False  # merged into an older step
        self._used_ns[n] = self._clock.now_ns()
        return True

    def digests_before(self, n: int) -> dict[int, Digest]:
        """Return the digests at version `n` of the tiles that changed since; `n` is in use."""
        digests: dict[int, Digest] = {}
        for step in self._steps:
            if step.base_n >= n:
                for tile, delta in step.deltas.items():
                    digests.setdefault(tile, delta.base_digest)
        return digests

    def deltas_since(self, n: int, tile: int) -> list[Delta]:
        """Return the deltas of a tile since version `n`, the latest first; `n` is in use."""
        steps = (one for one in reversed(self._steps) if one.base_n >= n)
        return [one.deltas[tile] for one in steps if tile in one.deltas]

    def _logged(self, n: int) -> dict[int, Delta] | None:
        frames = self._log.frames(UpdateKey(n, n - 1))
        if frames is None:
            return None
        deltas = {tile: Delta.from_bytes(frame) for tile, frame in frames.items()}
        return None if any(one.rule is not None for one in deltas.values()) else deltas

    def _nbytes(self) -> int:
        return sum(delta.nbytes for one in self._steps for delta in one.deltas.values())
