"""Subject and peer alternate in one run; the result is the median of the pair ratios."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.rows import CONTROL_BAR

Measure = Callable[[], float]


def timed(function: Callable[[], object]) -> Measure:
    """Return a measure of `function`'s duration, in nanoseconds."""

    def measure() -> float:
        began_ns = time.perf_counter_ns()
        function()
        return time.perf_counter_ns() - began_ns

    return measure


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at most 1 - `share` of all samples exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return two samples between which the true median lies with 95 %, for any distribution.

    For fewer than six samples it is their range, with less confidence: 94 % for five.
    """
    ordered = sorted(samples)
    count, below, outside = len(ordered), 0, 1
    # Number of the 2^count ways to fall left or right of the median with at most `below` samples on
    # one side.
    while 40 * outside <= 2**count:
        below += 1
        outside += math.comb(count, below)
    first = max(0, below - 1)
    return ordered[first], ordered[count - 1 - first]


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Medians over the rounds of one run.

    Args:
        ratio: subject divided by peer, per round.
        control: subject divided by the subject again; 1 on a machine that disturbs nothing.
        subject: the subject's own figure.
        peer: the peer's own figure.
        interval: interval of `ratio`, from `median_interval`.
    """

    ratio: float
    control: float
    subject: float
    peer: float
    interval: tuple[float, float] | None = None

    @property
    def is_void(self) -> bool:
        """Whether the machine was too busy for a meaningful ratio."""
        return not CONTROL_BAR.is_met(self.control)


class Pairs:
    """Rounds of subject, peer, subject. Every other round is reversed, so drift cancels."""

    def __init__(self, subject: Measure, peer: Measure) -> None:
        self._subject = subject
        self._peer = peer
        self._rounds: list[tuple[float, float, float]] = []  # subject, peer, control

    def round(self) -> None:
        first, peer, last = self._subject(), self._peer(), self._subject()
        is_forwards = len(self._rounds) % 2 == 0
        self._rounds.append((first, peer, last) if is_forwards else (last, peer, first))

    def result(self) -> PairedRatio:
        ratios = [subject / peer for subject, peer, _ in self._rounds]
        return PairedRatio(
            ratio=statistics.median(ratios),
            interval=median_interval(ratios),
            control=statistics.median(subject / control for subject, _, control in self._rounds),
            subject=statistics.median(subject for subject, _, _ in self._rounds),
            peer=statistics.median(peer for _, peer, _ in self._rounds),
        )


def paired_ratio(
    subject: Callable[[], object], peer: Callable[[], object], rounds: int
) -> PairedRatio:
    """Return the duration of `subject` divided by that of `peer`."""
    pairs = Pairs(timed(subject), timed(peer))
    for _ in range(rounds):
        pairs.round()
    return pairs.result()
