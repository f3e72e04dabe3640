"""Subject and peer by turns in one run: the number is the median of the pair ratios."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.rows import CONTROL_BAR

Measure = Callable[[], float]


def timed(function: Callable[[], object]) -> Measure:
    """Return a measure of how long `function` takes, in nanoseconds."""

    def measure() -> float:
        began_ns = time.perf_counter_ns()
        function()
        return time.perf_counter_ns() - began_ns

    return measure


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that `share` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return two samples that the true median lies between with 95 %, however they are spread.

    Of fewer than six samples it is their range, which says less: 94 % of five.
    """
    ordered = sorted(samples)
    count, below, outside = len(ordered), 0, 1
    # So many of the 2^count ways to fall left or right of the median leave `below` samples or fewer
    # on one side.
    while 40 * outside <= 2**count:
        below += 1
        outside += math.comb(count, below)
    first = max(0, below - 1)
    return ordered[first], ordered[count - 1 - first]


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Medians over the rounds of one run.

    Args:
        ratio: subject over peer, of each round.
        control: subject over itself; it says how much of `ratio` is the machine.
        subject: the subject's own figure.
        peer: the peer's.
        interval: of `ratio`, as `median_interval` gives it.
    """

    ratio: float
    control: float
    subject: float
    peer: float
    interval: tuple[float, float] | None = None

    @property
    def is_void(self) -> bool:
        """Whether the machine was too restless for the ratio to say anything."""
        return not CONTROL_BAR.is_met(self.control)


class Pairs:
    """Rounds of subject, peer, subject. Every other round goes backwards, so drift cancels."""

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
    """Return how long `subject` takes over how long `peer` takes."""
    pairs = Pairs(timed(subject), timed(peer))
    for _ in range(rounds):
        pairs.round()
    return pairs.result()
