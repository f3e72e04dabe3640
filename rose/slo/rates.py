"""Upper bounds of serving's speed, learned from its steps."""

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Final

# A certificate with a faster engine is a mistake; the core refuses its terms.
RATE_MAX: Final = 1e8
_MS_PER_S: Final = 1e3


class UpperBound:
    """A bound that the next sample exceeds with a probability of at most `epsilon`.

    The split-conformal quantile of the last `window` samples (arXiv 2107.07511): with n samples and
    the next one in any order equally likely, the k-th smallest bounds the next with probability k /
    (n + 1). Fewer than 1 / epsilon - 1 samples give no bound.
    """

    def __init__(self, *, epsilon: float, window: int) -> None:
        """Start without samples.

        Args:
            epsilon: probability of exceeding the bound, in (0, 1).
            window: number of samples to keep; at least 1 / epsilon, or there is never a bound.
        """
        self._epsilon = epsilon
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        self._window = window

    def add(self, sample: float) -> None:
        """Add a sample; the oldest is dropped when the window is full."""
        if len(self._recent) == self._window:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(sample)
        insort(self._ordered, sample)

    @property
    def bound(self) -> float | None:
        """The bound; None while there are too few samples."""
        count = len(self._ordered)
        # 0.99 * 100 exceeds 99 in floating point: the tiny subtrahend keeps the intended rank.
        rank = math.ceil((count + 1) * (1 - self._epsilon) - 1e-9)
        return self._ordered[rank - 1] if 1 <= rank <= count else None

    @property
    def largest(self) -> float:
        """The largest kept sample; 0 without any."""
        return self._ordered[-1] if self._ordered else 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Upper bounds, in tokens per second.

    Args:
        decode_tokens_per_s: decode speed of one request.
        prefill_tokens_per_s: prefill speed of the engine.
        is_measured: whether steps were measured; otherwise the bounds are prior times margin.
    """

    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    is_measured: bool


class ServingRates:
    """Upper bounds of serving's decode and prefill speed. The caller holds its lock.

    The higher of two bounds counts. Measured tokens per second say nothing about an unseen load,
    such as a full chunk after a day of short prompts: for that, the latency model's mean is divided
    by a bound of measured speed-up over that mean, or by `cold_margin` until enough steps were
    measured.
    """

    def __init__(self, *, epsilon: float, window: int, cold_margin: float) -> None:
        """Start without measurements.

        Args:
            epsilon: share of steps that may be faster than the bound, in (0, 1).
            window: number of steps to keep.
            cold_margin: assumed speed-up over the prior before measurements, >= 1.
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
            actual_ms: duration; a step of duration 0 is ignored.
            predicted_ms: the model's mean for it, before learning from it.
            decode_sequences: requests that got one token each.
            prefill_tokens: prompt tokens processed.
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
        # A step may always be as fast as the mean: a pessimistic model must not lower the bound.
        margin = self._cold_margin if speed_up is None else max(1.0, speed_up)
        decode = max(margin * _MS_PER_S / step_ms, self._decode.bound or 0.0)
        prefill = max(margin * chunk_tokens * _MS_PER_S / chunk_ms, self._prefill.bound or 0.0)
        return Rates(min(decode, RATE_MAX), min(prefill, RATE_MAX), speed_up is not None)
