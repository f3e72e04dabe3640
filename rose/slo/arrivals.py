"""Arrivals of requests: the most within a horizon, and the lengths of their prompts."""

from collections import deque

from rose.slo.rates import UpperBound


class ArrivalEnvelope:
    """The most remembered requests that arrived within any span of one horizon.

    It is the tightest token bucket that fits the remembered arrivals within one horizon: any other
    allows at least as many. Certificates also count the largest request, so they always expect one
    more than was ever seen. The caller holds its lock; the amortised cost of an arrival is
    constant.
    """

    def __init__(self, *, horizon_ns: int, remember_ns: int, epsilon: float, window: int) -> None:
        """Start without arrivals.

        Args:
            horizon_ns: length of the span, > 0.
            remember_ns: time for which a span counts, so that the effect of a storm ends.
            epsilon: share of prompts that may be longer than `prompt_tokens`, in (0, 1).
            window: number of prompts to remember.
        """
        self._horizon_ns = horizon_ns
        self._remember_ns = remember_ns
        self._recent_ns: deque[int] = deque()  # arrivals within the last horizon
        # Spans by their last arrival, with descending counts: an older span that is not larger than
        # a newer one can never be the largest again.
        self._spans: deque[tuple[int, int]] = deque()
        self._prompts = UpperBound(epsilon=epsilon, window=window)

    @property
    def most_requests(self) -> int:
        """Largest number of arrivals within one horizon."""
        return self._spans[0][1] if self._spans else 0

    @property
    def prompt_tokens(self) -> float | None:
        """Upper bound for the next prompt; None while too few were seen."""
        return self._prompts.bound

    @property
    def longest_prompt_tokens(self) -> float:
        """Longest remembered prompt; 0 without any."""
        return self._prompts.largest

    def arrived(self, now_ns: int, *, prompt_tokens: int) -> None:
        """Record an arrival.

        Args:
            now_ns: time of the arrival, not before the last one.
            prompt_tokens: length of the prompt.
        """
        self._prompts.add(prompt_tokens)
        self._recent_ns.append(now_ns)
        while self._recent_ns[0] < now_ns - self._horizon_ns:
            self._recent_ns.popleft()
        count = len(self._recent_ns)
        while self._spans and self._spans[-1][1] <= count:
            self._spans.pop()
        self._spans.append((now_ns, count))
        self.forget(now_ns)

    def forget(self, now_ns: int) -> None:
        """Forget the spans that ended longer than `remember_ns` ago."""
        while self._spans and self._spans[0][0] < now_ns - self._remember_ns:
            self._spans.popleft()
