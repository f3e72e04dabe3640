"""Refusals, and the reasons for them."""

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Reason for a refusal."""

    POOL_EMPTY = "the pool has no slab to lend"
    OVER_LIMIT = "the partition is at its limit, or the device at its cap"
    FRAGMENTED = "no run of neighbouring slabs is long enough"
    RESERVE_AT_RISK = "serving could need these slabs before they are returned"
    SERVING_BUSY = "serving has requests"
    SLO_AT_RISK = "the next serving request could miss its target"
    NO_EVIDENCE = "too few serving steps were measured to promise anything"
    NO_HEARTBEAT = "the last heartbeat of the serving host is too old"
    LATE = "slabs that were due are still in use"
    LOG_BROKEN = "the certificate log cannot be written"
    SEGMENT_TOO_LONG = "rollout segments take longer than serving's targets allow"
    BUDGET_SPENT = "rollouts have slowed serving's requests down by the allowed share"
    IN_STEP = "a step is running, and slabs are mapped only between steps"
    CLOSED = "the device is closed"


@dataclass(frozen=True, slots=True)
class SegmentLimit:
    """Length of rollout segments that serving's targets do not allow.

    Args:
        measured_ms: measured length, which certificates count.
        limit_ms: longest segment that would fit.
    """

    measured_ms: float
    limit_ms: float

    @property
    def lengths(self) -> tuple[float, float]:
        """Both fields."""
        return self.measured_ms, self.limit_ms

    @property
    def sentence(self) -> str:
        """The two lengths as a sentence."""
        return (
            f"a rollout segment takes {self.measured_ms:.3g} ms, but serving's targets allow "
            f"{self.limit_ms:.3g} ms"
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """A normal answer: not now.

    Args:
        reason: cause of the refusal.
        retry_after_ms: milliseconds until a retry can succeed; 0: retry after the next change of
            state.
        segment: measured length of the segments, and the limit; None unless `reason` is
            `SEGMENT_TOO_LONG`.
    """

    reason: Reason
    retry_after_ms: float = 0.0
    segment: SegmentLimit | None = None

    def __bool__(self) -> bool:
        """Return False, so that `if answer:` reads as "granted"."""
        return False
