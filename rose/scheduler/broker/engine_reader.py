"""Turns what an engine says, again and again, into observations of its device."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from rose.errors import CorruptData
from rose.scheduler.broker.observation import Observation, ServingDevice
from rose.units import MS_PER_S

WINDOW_MS: Final = 15_000.0
"""What tails are taken over: hundreds of tokens, and old news are forgotten in three readings."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A Prometheus histogram: what was counted since the engine started.

    Args:
        bounds_s: upper bounds of the buckets, ascending; the last is infinite.
        counts: at or below each bound, ascending.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what no engine counts.

        Raises:
            CorruptData: bounds or counts descend, a count is no number, or there is no last bucket.
        """
        if not self.bounds_s or self.bounds_s[-1] != math.inf:
            raise CorruptData("a histogram has no bucket without a bound")
        if list(self.bounds_s) != sorted(set(self.bounds_s)):
            raise CorruptData("the bounds of a histogram are not all different numbers")
        if not all(math.isfinite(one) and one >= 0 for one in self.counts):
            raise CorruptData("a histogram has a count that is negative or no number")
        if list(self.counts) != sorted(self.counts):
            raise CorruptData("the counts of a histogram descend")

    def since(self, before: "Histogram") -> "Histogram":
        """Return what was counted after `before`; everything, if the engine began anew."""
        if before.bounds_s != self.bounds_s:
            return self
        counts = tuple(new - old for new, old in zip(self.counts, before.counts, strict=True))
        if min(counts) < 0 or list(counts) != sorted(counts):
            return self
        return Histogram(self.bounds_s, counts)

    def p99_ms(self) -> float | None:
        """Return the latency that 99 of 100 did not exceed; None when nothing was counted.

        Inside a bucket they are taken to be spread evenly, as Prometheus does. Beyond the last
        bound it is infinite: Prometheus would name that bound, and a target above it were met.
        """
        rank = 0.99 * self.counts[-1]
        if not rank:
            return None
        at = next(n for n, count in enumerate(self.counts) if count >= rank)
        if self.bounds_s[at] == math.inf:
            return math.inf
        low_s, below = (self.bounds_s[at - 1], self.counts[at - 1]) if at else (0.0, 0.0)
        low_s = min(low_s, self.bounds_s[at])  # A first bound below 0.
        part = (rank - below) / (self.counts[at] - below)
        return max(0.0, low_s + (self.bounds_s[at] - low_s) * part) * MS_PER_S


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One reading of one engine.

    Args:
        engine: "vLLM", "SGLang", or "rose" for what its executor says.
        model: what it calls its model; "" if it does not say.
        kv_used: the share of its KV pool that requests hold, of the fullest rank, 0 to 1.
        kv_tokens: that the pool holds, over all ranks; None if it does not say.
        running: requests that it works on.
        waiting: requests that it has not begun.
        preempted: requests that it put back for want of KV, since it started.
        ttft: times to the first token.
        tpot: times between tokens.
    """

    engine: str
    model: str
    kv_used: float
    kv_tokens: int | None
    running: int
    waiting: int
    preempted: float
    ttft: Histogram
    tpot: Histogram


class EngineReader:
    """Keeps the readings of a window, because engines count from their start."""

    def __init__(self, device: ServingDevice) -> None:
        """Start without a reading of the device that the engine serves on."""
        self._device = device
        self._readings: deque[tuple[float, EngineMetrics]] = deque()

    def observe(self, said: EngineMetrics, at_ms: float) -> Observation:
        """Return how serving is now.

        Args:
            said: by the engine.
            at_ms: when.
        """
        self._readings.append((at_ms, said))
        # The oldest that is kept lies at the window's beginning or before it.
        while len(self._readings) > 2 and self._readings[1][0] <= at_ms - WINDOW_MS:
            self._readings.popleft()
        oldest = self._readings[0][1]
        last = self._readings[-2][1] if len(self._readings) > 1 else said
        return Observation(
            device=self._device,
            at_ms=at_ms,
            kv_used=said.kv_used,
            running=said.running,
            waiting=said.waiting,
            preempted=math.ceil(max(0.0, said.preempted - last.preempted)),
            # Nobody knows of when the first reading's latencies are.
            ttft_ms_p99=None if oldest is said else said.ttft.since(oldest.ttft).p99_ms(),
            tpot_ms_p99=None if oldest is said else said.tpot.since(oldest.tpot).p99_ms(),
        )
