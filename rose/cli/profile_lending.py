"""What the broker would have lent: the policy that decides in production, on what was measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rose.cli.profile_measured import Measured
from rose.scheduler.broker import Broker, Move, Unread
from rose.slo import SLO
from rose.units import MS_PER_S

_CONFIDENCE: Final = 0.95
_S_PER_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Lent:
    """One pair of targets.

    Args:
        at_ms: of each decision.
        lend_bytes: on loan from then on.
        revocations: times that serving took back all or a part.
        longest_s: the longest time in which something was on loan without a break.
        hours: that were measured.
        reasons: of shrinking and ending loans, and of lending nothing: (sentence, how often).
    """

    at_ms: tuple[float, ...]
    lend_bytes: tuple[int, ...]
    revocations: int
    longest_s: float
    hours: float
    reasons: tuple[tuple[str, int], ...]

    @property
    def mean_bytes(self) -> float:
        """What was on loan on average over the time."""
        held = _held(self.at_ms, self.lend_bytes)
        total_ms = sum(ms for ms, _ in held)
        return sum(ms * size for ms, size in held) / total_ms if total_ms else 0.0

    @property
    def peak_bytes(self) -> int:
        """The largest loan."""
        return max(self.lend_bytes, default=0)

    @property
    def lent_share(self) -> float:
        """The share of the time in which anything was on loan."""
        held = _held(self.at_ms, self.lend_bytes)
        total_ms = sum(ms for ms, _ in held)
        return sum(ms for ms, size in held if size) / total_ms if total_ms else 0.0

    @property
    def per_hour(self) -> float | None:
        """Revocations per hour as they were counted."""
        return self.revocations / self.hours if self.hours > 0 else None

    @property
    def per_hour_most(self) -> float | None:
        """What they do not exceed with 95 % confidence: little was seen in a short time."""
        return poisson_most(self.revocations) / self.hours if self.hours > 0 else None


def lend(measured: Measured, slo: SLO) -> Lent:
    """Replay what was measured to a broker.

    Args:
        measured: readings that failed are told as such.
        slo: of serving.
    """
    device = measured.pool.device(slo)
    readings = [(one.at_ms, replace(one, device=device)) for one in measured.observations] + [
        (at_ms, Unread(device, why)) for at_ms, why in measured.failures
    ]
    readings.sort(key=lambda one: one[0])
    broker = Broker(device, reading_ms=measured.every_ms)
    at_ms, sizes, revocations = [], [], 0
    reasons: dict[str, int] = {}
    for now_ms, reading in readings:
        decision = broker.decide(reading, now_ms)
        at_ms.append(now_ms)
        sizes.append(decision.lend_bytes)
        if decision.move in {Move.SHRINK, Move.END}:
            revocations += 1
        if decision.move in {Move.SHRINK, Move.END, Move.REFUSE}:
            reasons[_kind(decision.why)] = reasons.get(_kind(decision.why), 0) + 1
    hours = (at_ms[-1] - at_ms[0]) / MS_PER_S / _S_PER_HOUR if at_ms else 0.0
    return Lent(
        at_ms=tuple(at_ms),
        lend_bytes=tuple(sizes),
        revocations=revocations,
        longest_s=_longest_s(at_ms, sizes),
        hours=hours,
        reasons=tuple(sorted(reasons.items(), key=lambda one: (-one[1], one[0]))),
    )


def poisson_most(count: int) -> float:
    """Return the largest mean under which so few events are seen in 1 of 20 cases, by bisection."""
    low, high = 0.0, 2.0 * count + 20.0
    for _ in range(60):
        mean = (low + high) / 2
        logs = [k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(count + 1)]
        at_most = sum(math.exp(one) for one in logs)
        low, high = (mean, high) if at_most > 1 - _CONFIDENCE else (low, mean)
    return high


def _held(at_ms: Sequence[float], sizes: Sequence[int]) -> list[tuple[float, int]]:
    """Return how long each size was held; nobody knows of the last one."""
    return [
        (later_ms - now_ms, size)
        for now_ms, later_ms, size in zip(at_ms, at_ms[1:], sizes, strict=False)
    ]


def _longest_s(at_ms: Sequence[float], sizes: Sequence[int]) -> float:
    longest_ms, run_ms = 0.0, 0.0
    for ms, size in _held(at_ms, sizes):
        run_ms = run_ms + ms if size else 0.0
        longest_ms = max(longest_ms, run_ms)
    return longest_ms / MS_PER_S


def _kind(why: str) -> str:
    """Return a reason without its numbers, so that it can be counted."""
    if why.startswith("calm must last"):
        return "calm had not lasted long enough"
    if " have a P99 of " in why:
        return f"the tail of {why.split(' have ', maxsplit=1)[0]} came too close to its target"
    if " requests " in why:
        return f"requests {why.split(' requests ')[1]}"
    return why
