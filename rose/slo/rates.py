"""What serving can do at most, measured: upper bounds for its speed, learned step by step."""

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Final

# A certificate with a faster engine than that is a mistake; the core refuses its terms.
RATE_MAX: Final = 1e8
_MS_PER_S: Final = 1e3


class UpperBound:
    """A bound that the next sample exceeds with a probability of at most `epsilon`.

    The split-conformal quantile of the last `window` samples (arXiv 2107.07511): of n samples and
    one to come, all orders are equally likely, so the k-th smallest is not exceeded with a
    probability of k / (n + 1). With fewer than 1 / epsilon - 1 samples there is no such bound.
    """

    def __init__(self, *, epsilon: float, window: int) -> None:
        """Start without samples.

        Args:
            epsilon: in (0, 1).
            window: samples kept, at least 1 / epsilon, or there never is a bound.
        """
        self._epsilon = epsilon
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        self._window = window

    def add(self, sample: float) -> None:
        """Learn a sample; the oldest is forgotten when the window is full."""
        if len(self._recent) == self._window:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(sample)
        insort(self._ordered, sample)

    @property
    def bound(self) -> float | None:
        """The bound, or None while there are too few samples."""
        count = len(self._ordered)
        # 0.99 * 100 is more than 99 in doubles: a hair less keeps the rank that was meant.
        rank = math.ceil((count + 1) * (1 - self._epsilon) - 1e-9)
        return self._ordered[rank - 1] if 1 <= rank <= count else None

    @property
    def largest(self) -> float:
        """The largest sample that is remembered; 0 without any."""
        return self._ordered[-1] if self._ordered else 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second, at most.

    Args:
        decode_tokens_per_s: of one request.
        prefill_tokens_per_s: of the engine.
        is_measured: whether steps said so; otherwise the prior and its margin did.
    """

    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    is_measured: bool


class ServingRates:
    """How fast serving decodes and prefills at most. The caller's lock.

    Two bounds, and the higher one counts. Measured tokens per second of past steps say nothing of a
    load that has not been seen, a full chunk after a day of short prompts: for that, the latency
    model's mean is divided by how much faster than it said steps have been. Until enough steps have
    ended, that margin is `cold_margin`.
    """

    def __init__(self, *, epsilon: float, window: int, cold_margin: float) -> None:
        """Start with nothing measured.

        Args:
            epsilon: the share of steps that may be faster than the bound, in (0, 1).
            window: steps remembered.
            cold_margin: how much faster than the prior a step may be, >= 1.
        """
        self._decode = UpperBound(epsilon=epsilon, window=window)
        self._prefill = UpperBound(epsilon=epsilon, window=window)
        self._speed_up = UpperBound(epsilon=epsilon, window=window)
        self._cold_margin = cold_margin

    def step_ended(
        self,
        *,
        actual_ms: float,
        predicted_ms: float,
        decode_sequences: float,
        prefill_tokens: float,
    ) -> None:
        """Learn from a step.

        Args:
            actual_ms: what it took; a step of no length says nothing.
            predicted_ms: the model's mean for it, before it was learned.
            decode_sequences: requests that got one token each.
            prefill_tokens: prompt tokens that were processed.
        """
        if not actual_ms > 0:
            return
        self._speed_up.add(predicted_ms / actual_ms)
        if decode_sequences > 0:
            self._decode.add(_MS_PER_S / actual_ms)
        if prefill_tokens > 0:
            self._prefill.add(prefill_tokens * _MS_PER_S / actual_ms)

    def bounds(self, *, step_ms: float, chunk_ms: float, chunk_tokens: int) -> Rates:
        """Return the upper bounds.

        Args:
            step_ms: the model's mean for a step that decodes one request, > 0.
            chunk_ms: its mean for the largest chunk, > 0.
            chunk_tokens: tokens of that chunk.
        """
        speed_up = self._speed_up.bound
        # A step may always be as fast as the mean: a model that is pessimistic for now is no bound.
        margin = self._cold_margin if speed_up is None else max(1.0, speed_up)
        decode = max(margin * _MS_PER_S / step_ms, self._decode.bound or 0.0)
        prefill = max(margin * chunk_tokens * _MS_PER_S / chunk_ms, self._prefill.bound or 0.0)
        return Rates(min(decode, RATE_MAX), min(prefill, RATE_MAX), speed_up is not None)
