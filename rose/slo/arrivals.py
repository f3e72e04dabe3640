"""How requests arrive: a token bucket that recent arrivals have kept to."""

from collections import deque
from itertools import pairwise
from typing import Final

from rose.units import NS_PER_S

# The bucket is fitted anew after so many arrivals, so that its mean cost per arrival is small.
_FIT_EVERY: Final = 32


class ArrivalEnvelope:
    """A rate and a burst: among the last arrivals, no span has more than burst + rate * its length.

    The rate is the mean of the window when the bucket was fitted last. The burst is then the least
    that holds for every pair of arrivals, as a bucket that leaks at this rate and gets one request
    with each arrival is never fuller. Certificates count the largest request besides, so there is
    always one more than was ever seen. The caller's lock.
    """

    def __init__(self, *, window: int) -> None:
        """Start without arrivals.

        Args:
            window: arrivals remembered, at least 1.
        """
        self._times_ns: deque[int] = deque(maxlen=window)
        self._since_fit = 0
        self._rate_per_ns = 0.0
        self._level = 0.0
        self._burst = 0.0

    @property
    def rate_per_s(self) -> float:
        """Requests per second, in the long run."""
        return self._rate_per_ns * NS_PER_S

    @property
    def burst(self) -> float:
        """Requests at once; 0 before the first arrival, then at least 1."""
        return self._burst

    def arrived(self, now_ns: int) -> None:
        """Note an arrival.

        Args:
            now_ns: never less than for the arrival before.
        """
        gap_ns = now_ns - self._times_ns[-1] if self._times_ns else 0
        self._times_ns.append(now_ns)
        self._since_fit += 1
        # A young bucket is fitted each time: it is cheap then, and its rate changes fast.
        if self._since_fit >= min(_FIT_EVERY, len(self._times_ns)):
            self._fit()
        else:
            self._pour(gap_ns)

    def _pour(self, gap_ns: int) -> None:
        self._level = max(0.0, self._level - self._rate_per_ns * gap_ns) + 1
        self._burst = max(self._burst, self._level)

    def _fit(self) -> None:
        """Take the window's mean rate, and pour all of its arrivals again."""
        times = self._times_ns
        span_ns = times[-1] - times[0]
        self._rate_per_ns = (len(times) - 1) / span_ns if span_ns > 0 else 0.0
        self._since_fit = 0
        self._level = self._burst = 0.0
        self._pour(0)
        for before_ns, now_ns in pairwise(times):
            self._pour(now_ns - before_ns)
