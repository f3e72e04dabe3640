"""Latencies of a window: the difference between two readings of a counter's buckets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rose.errors import CorruptData
from rose.units import MS_PER_S


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


def summed(histograms: Sequence[Histogram]) -> Histogram:
    """Return the histogram of all of them: the ranks of one engine count on their own.

    Raises:
        CorruptData: their buckets differ.
    """
    bounds_s = histograms[0].bounds_s
    if any(one.bounds_s != bounds_s for one in histograms):
        raise CorruptData("the buckets of one latency differ from label to label")
    counts = zip(*(one.counts for one in histograms), strict=True)
    return Histogram(bounds_s, tuple(map(sum, counts)))
