"""Turns an engine's cumulative metrics into observations of its device."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from rose.errors import CorruptData
from rose.units import MS_PER_S
from rose_lab.broker.observation import Observation, ServingDevice

WINDOW_MS: Final = 15_000.0
"""Period over which P99 latencies are taken: it has hundreds of tokens, but only three readings."""


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """A Prometheus histogram, counted since the engine started.

    Args:
        bounds_s: upper bounds of the buckets, ascending; the last is infinite.
        counts: observations at or below each bound, ascending.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check bounds and counts.

        Raises:
            CorruptData: bounds or counts descend, a count is invalid, or the last bound is finite.
        """
        if not self.bounds_s or self.bounds_s[-1] != math.inf:
            raise CorruptData("a histogram must have a bucket with the bound +Inf")
        if list(self.bounds_s) != sorted(set(self.bounds_s)):
            raise CorruptData("the bounds of a histogram must be ascending and distinct")
        if not all(math.isfinite(one) and one >= 0 for one in self.counts):
            raise CorruptData("the counts of a histogram must be finite and at least 0")
        if list(self.counts) != sorted(self.counts):
            raise CorruptData("the counts of a histogram must not descend")

    def since(self, before: "LatencyHistogram") -> "LatencyHistogram":
        """Return the counts after `before`; all of them, if the engine restarted."""
        if before.bounds_s != self.bounds_s:
            return self
        counts = tuple(new - old for new, old in zip(self.counts, before.counts, strict=True))
        if min(counts) < 0 or list(counts) != sorted(counts):
            return self
        return LatencyHistogram(self.bounds_s, counts)

    def p99_ms(self) -> float | None:
        """Return the 99th percentile of the latency; None without observations.

        Latencies are taken to be uniform inside a bucket, as in Prometheus. A percentile beyond the
        last finite bound is infinite. Prometheus would return that bound instead, and a target
        above the bound would seem to be met.
        """
        rank = 0.99 * self.counts[-1]
        if not rank:
            return None
        at = next(n for n, count in enumerate(self.counts) if count >= rank)
        if self.bounds_s[at] == math.inf:
            return math.inf
        low_s, below = (self.bounds_s[at - 1], self.counts[at - 1]) if at else (0.0, 0.0)
        low_s = min(low_s, self.bounds_s[at])  # The first bound may be negative.
        part = (rank - below) / (self.counts[at] - below)
        return max(0.0, low_s + (self.bounds_s[at] - low_s) * part) * MS_PER_S


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One reading of one engine.

    Args:
        engine: "vLLM", "SGLang", or "rose" for its executor.
        model: name that the engine gives its model; "" if unknown.
        kv_used: share of the KV pool held by requests, on the fullest rank, 0 to 1.
        kv_tokens: capacity of the pool over all ranks, in tokens; None if unknown.
        running: number of running requests.
        waiting: number of requests not started.
        preempted: number of preemptions for want of KV, since the engine started.
        ttft: times to first token.
        tpot: times between tokens.
    """

    engine: str
    model: str
    kv_used: float
    kv_tokens: int | None
    running: int
    waiting: int
    preempted: float
    ttft: LatencyHistogram
    tpot: LatencyHistogram


class EngineReader:
    """Keeps the readings of a window, because engines report counts since their start."""

    def __init__(self, device: ServingDevice) -> None:
        """Start without readings of `device`, on which the engine serves."""
        self._device = device
        self._readings: deque[tuple[float, EngineMetrics]] = deque()

    def observe(self, metrics: EngineMetrics, at_ms: float) -> Observation:
        """Return the current state of serving."""
        self._readings.append((at_ms, metrics))
        # Keep one reading at or before the start of the window.
        while len(self._readings) > 2 and self._readings[1][0] <= at_ms - WINDOW_MS:
            self._readings.popleft()
        oldest = self._readings[0][1]
        last = self._readings[-2][1] if len(self._readings) > 1 else metrics
        return Observation(
            device=self._device,
            at_ms=at_ms,
            kv_used=metrics.kv_used,
            running=metrics.running,
            waiting=metrics.waiting,
            preempted=math.ceil(max(0.0, metrics.preempted - last.preempted)),
            # The period of the first reading's latencies is unknown.
            ttft_ms_p99=None if oldest is metrics else metrics.ttft.since(oldest.ttft).p99_ms(),
            tpot_ms_p99=None if oldest is metrics else metrics.tpot.since(oldest.tpot).p99_ms(),
        )
