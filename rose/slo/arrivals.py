"""How requests arrive: the most that came within a horizon, and how long their prompts are."""

from collections import deque

from rose.slo.rates import UpperBound


class ArrivalEnvelope:
    """The most requests that came within any span as long as the horizon, of those remembered.

    Of all token buckets that the remembered arrivals have kept to within one horizon, this is the
    tightest: any other allows as many in the horizon as came, at least. Certificates count the
    largest request besides, so there is always one more than was ever seen. The caller's lock; an
    arrival costs the same however many are remembered, on average.
    """

    def __init__(self, *, horizon_ns: int, remember_ns: int, epsilon: float, window: int) -> None:
        """Start without arrivals.

        Args:
            horizon_ns: the length of the span, > 0.
            remember_ns: for how long a span counts; a storm must not be waited for for ever.
            epsilon: the share of prompts that may be longer than `prompt_tokens`, in (0, 1).
            window: prompts remembered.
        """
        self._horizon_ns = horizon_ns
        self._remember_ns = remember_ns
        self._recent_ns: deque[int] = deque()  # arrivals within the last horizon
        # Spans by their last arrival, with their counts, which descend: a span that is older and
        # not larger than another can never be the largest again.
        self._spans: deque[tuple[int, int]] = deque()
        self._prompts = UpperBound(epsilon=epsilon, window=window)

    @property
    def most_requests(self) -> int:
        """How many came within one horizon, at most."""
        return self._spans[0][1] if self._spans else 0

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
        self._recent_ns.append(now_ns)
        while self._recent_ns[0] < now_ns - self._horizon_ns:
            self._recent_ns.popleft()
        count = len(self._recent_ns)
        while self._spans and self._spans[-1][1] <= count:
            self._spans.pop()
        self._spans.append((now_ns, count))
        self.forget(now_ns)

    def forget(self, now_ns: int) -> None:
        """Forget the spans that ended too long ago."""
        while self._spans and self._spans[0][0] < now_ns - self._remember_ns:
            self._spans.popleft()
