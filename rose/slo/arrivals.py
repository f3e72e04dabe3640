"""How requests arrive: a token bucket that they have kept to, and how long their prompts are."""

from collections import deque
from itertools import pairwise
from typing import Final

from rose.slo.rates import UpperBound
from rose.units import NS_PER_S

# The bucket is fitted anew after so many arrivals, so that its mean cost per arrival is small.
_FIT_EVERY: Final = 32


class ArrivalEnvelope:
    """A rate and a burst: among the last arrivals, no span has more than burst + rate * its length.

    The rate is the mean of what is remembered when the bucket was fitted last. The burst is then
    the least that holds for every pair of arrivals: a bucket that leaks at this rate, and gets one
    request with each arrival, is never fuller. Certificates count the largest request besides, so
    there is always one more than was ever seen. The caller's lock.
    """

    def __init__(self, *, epsilon: float, window: int, remember_ns: int) -> None:
        """Start without arrivals.

        Args:
            epsilon: the share of prompts that may be longer than `prompt_tokens`, in (0, 1).
            window: arrivals remembered, at least 1.
            remember_ns: for how long; a storm must not be waited for for ever.
        """
        self._times_ns: deque[int] = deque(maxlen=window)
        self._remember_ns = remember_ns
        self._since_fit = 0
        self._rate_per_ns = 0.0
        self._level = 0.0
        self._burst = 0.0
        self._prompts = UpperBound(epsilon=epsilon, window=window)

    @property
    def rate_per_s(self) -> float:
        """Requests per second, in the long run."""
        return self._rate_per_ns * NS_PER_S

    @property
    def burst(self) -> float:
        """Requests at once; 0 without arrivals, else at least 1."""
        return self._burst

    @property
    def prompt_tokens(self) -> float | None:
        """What the next prompt is not longer than; None while too few were seen to tell."""
        return self._prompts.bound

    @property
    def longest_prompt_tokens(self) -> float:
        """The longest prompt that is remembered; 0 without any."""
        return self._prompts.largest

    def arrived(self, now_ns: int, *, prompt_tokens: int) -> None:
        """Note an arrival.

        Args:
            now_ns: never less than for the arrival before.
            prompt_tokens: of the request.
        """
        self._prompts.add(prompt_tokens)
        gap_ns = now_ns - self._times_ns[-1] if self._times_ns else 0
        self._times_ns.append(now_ns)
        self._since_fit += 1
        # A young bucket is fitted each time: it is cheap then, and its rate changes fast.
        if len(self._times_ns) <= _FIT_EVERY or self._since_fit >= _FIT_EVERY:
            self._fit()
        else:
            self._pour(gap_ns)

    def forget(self, now_ns: int) -> None:
        """Forget the times of arrivals that were too long ago."""
        count = len(self._times_ns)
        while self._times_ns and self._times_ns[0] < now_ns - self._remember_ns:
            self._times_ns.popleft()
        if len(self._times_ns) < count:
            self._fit()

    def _pour(self, gap_ns: int) -> None:
        self._level = max(0.0, self._level - self._rate_per_ns * gap_ns) + 1
        self._burst = max(self._burst, self._level)

    def _fit(self) -> None:
        """Take the mean rate, and pour all arrivals again."""
        times = self._times_ns
        span_ns = times[-1] - times[0] if times else 0
        self._rate_per_ns = (len(times) - 1) / span_ns if span_ns > 0 else 0.0
        self._since_fit = 0
        self._level = self._burst = 0.0
        if times:
            self._pour(0)
        for before_ns, now_ns in pairwise(times):
            self._pour(now_ns - before_ns)
