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
    BUDGET_SPENT = "rollouts have slowed serving's requests down by the allowed share"
    IN_STEP = "a step is running, and slabs are mapped only between steps"
    CLOSED = "the device is closed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A normal answer: not now.

    Args:
        reason: cause of the refusal.
        retry_after_ms: milliseconds until a retry can succeed; 0: retry after the next change of
            state.
    """

    reason: Reason
    retry_after_ms: float = 0.0

    def __bool__(self) -> bool:
        """Return False, so that `if answer:` reads as "granted"."""
        return False
