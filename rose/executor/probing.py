"""Decides when serving's engine runs a probe, which is a step that runs only to be measured."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from rose.units import NS_PER_MS

ShapeName: TypeAlias = Literal["step", "chunk"]
"""The two step shapes that certificates rely on: a decode step, and a chunk of a prompt."""

# Share of idle time for probes while every quantum is refused. It allows 200 steps of 100 ms within
# 80 s, and saves three quarters of the device's energy and memory bandwidth.
_SEARCH_SHARE: Final = 0.25
# Share of idle time for probes otherwise. Rollouts lose this time. The probes keep the evidence
# recent, and detect when the machine becomes faster.
RENEWAL_SHARE: Final = 0.005
# Factor on the search share after a round without effect, because the next round is less likely to
# help.
_NEXT_ROUND: Final = 0.5
# Largest ration that can be saved, so that probes never run in a burst after a long idle time.
_SAVED_NS: Final = 100 * NS_PER_MS
# Largest debt: four chunks of a second each. It limits the pause after warm-up, whose probes are
# also charged.
_DEBT_NS: Final = 4_000 * NS_PER_MS


@dataclass(frozen=True, slots=True)
class Seen:
    """State of the device at one moment.

    Args:
        is_idle: whether no request is live and no step runs.
        granted: number of quanta granted so far.
        refused: number of refusals so far for an SLO at risk or missing evidence.
        binding: step shape whose bound caused the newest of these refusals; None if a segment
            caused it.
    """

    is_idle: bool
    granted: int
    refused: int
    binding: ShapeName | None


class ProbeRation:
    """Decides when a probe runs, and its shape. Pure; the caller reads the clock and counters.

    The law: between two calls of `due` on an idle device the ration grows by at most a quarter of
    the time between them, or by 0.5 % of it while quanta are granted. A probe starts only while the
    ration is above zero. So probes take at most this share of idle time, plus the saved ration,
    plus one probe.

    For one thread at a time.
    """

    def __init__(self, *, wanted: int) -> None:
        """Start with an empty ration.

        Args:
            wanted: number of probes of one shape in a full round.
        """
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
        """Record that serving has work, so the time since the last `due` was not all idle."""
        self._idle_since_ns = None

    def probed(self, shape: ShapeName, took_ns: float) -> None:
        """Charge one probe to the ration."""
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
        """Share of idle time that probes may take now."""
        return RENEWAL_SHARE if self._searched is None else self._search_share

    def _fill(self, now_ns: int, *, is_idle: bool) -> None:
        if self._idle_since_ns is not None and is_idle:
            idle_ns = max(now_ns - self._idle_since_ns, 0)
            self._level_ns = min(self._level_ns + self.share * idle_ns, _SAVED_NS)
        self._idle_since_ns = now_ns if is_idle else None

    def _look(self, seen: Seen) -> None:
        """Choose to probe the shape that causes refusals while no quantum is granted."""
        if seen.granted != self._granted:
            self._search_share, self._searched, self._round = _SEARCH_SHARE, None, 0
        elif seen.refused != self._refused and seen.binding != self._searched:
            self._searched, self._round = seen.binding, 0
        self._granted, self._refused = seen.granted, seen.refused
