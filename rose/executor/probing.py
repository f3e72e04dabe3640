"""When serving's engine runs a probe: a step that is run only to be measured."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from rose.units import NS_PER_MS

ShapeName: TypeAlias = Literal["step", "chunk"]
"""The two step shapes that certificates ask about: a decode step, and a chunk of a prompt."""

# While every quantum is refused, idle time serves nobody: a quarter of it gives 200 steps of 100 ms
# within 80 s, and leaves three quarters of the device's energy and memory bandwidth alone.
_SEARCH_SHARE: Final = 0.25
# Renewal keeps scores young, and finds out when a machine has become faster. Rollouts lose so much.
RENEWAL_SHARE: Final = 0.02
# A round that changed nothing makes the next one less likely to.
_NEXT_ROUND: Final = 0.5
# Longer idle times save up no more than this, so probes come one by one and never in a burst.
_SAVED_NS: Final = 100 * NS_PER_MS
# Probes of a warm-up are counted too, and put the next probe off by no more than one of four chunks
# of a second each.
_DEBT_NS: Final = 4_000 * NS_PER_MS


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at the device found.

    Args:
        is_idle: whether no request is live and no step runs.
        granted: quanta granted so far.
        refused: refusals so far because a target was at risk, or for lack of evidence.
        binding: the shape that the newest of these refusals was about; None for a segment.
    """

    is_idle: bool
    granted: int
    refused: int
    binding: ShapeName | None


class ProbeRation:
    """Decides when a probe runs, and of which shape. Pure; the caller reads the clock and counters.

    The law: between two looks at an idle device the ration grows by at most a quarter of the time
    between them, 2 % while quanta are granted, and a probe starts while it is above zero. So probes
    take at most this share of idle time, what was saved up, and one probe more.

    One thread at a time.
    """

    def __init__(self, *, wanted: int) -> None:
        """Start with an empty ration; `wanted` probes of a shape are a full round of evidence."""
        self._wanted = wanted
        self._level_ns = 0.0
        self._idle_since_ns: int | None = None
        self._granted = 0
        self._refused = 0
        self._search_share = _SEARCH_SHARE
        self._searched: ShapeName | None = None
        self._round = 0
        self._last: ShapeName = "step"

    def due(self, now_ns: int, seen: Seen) -> ShapeName | None:
        """Return the shape to probe now, or None."""
        self._fill(now_ns, is_idle=seen.is_idle)
        self._look(seen)
        if not seen.is_idle or self._level_ns <= 0:
            return None
        return self._searched or ("chunk" if self._last == "step" else "step")

    def stepped(self) -> None:
        """Note that a step begins: the time since the last look was not all idle."""
        self._idle_since_ns = None

    def probed(self, shape: ShapeName, took_ns: float) -> None:
        """Count one step that ran as a probe."""
        self._level_ns = max(self._level_ns - took_ns, -_DEBT_NS)
        self._last = shape
        if shape != self._searched:
            return
        self._round += 1
        if self._round >= self._wanted:
            self._round = 0
            self._search_share = max(self._search_share * _NEXT_ROUND, RENEWAL_SHARE)

    @property
    def share(self) -> float:
        """The share of idle time that probes may take now."""
        return RENEWAL_SHARE if self._searched is None else self._search_share

    def _fill(self, now_ns: int, *, is_idle: bool) -> None:
        if self._idle_since_ns is not None and is_idle:
            idle_ns = max(now_ns - self._idle_since_ns, 0)
            self._level_ns = min(self._level_ns + self.share * idle_ns, _SAVED_NS)
        self._idle_since_ns = now_ns if is_idle else None

    def _look(self, seen: Seen) -> None:
        """Search while everything is refused for a shape; renew otherwise."""
        if seen.granted != self._granted:
            self._search_share, self._searched, self._round = _SEARCH_SHARE, None, 0
        elif seen.refused != self._refused and seen.binding != self._searched:
            self._searched, self._round = seen.binding, 0
        self._granted, self._refused = seen.granted, seen.refused
