"""What the broker is told: which devices serve, and how serving is on each."""

import math
from dataclasses import dataclass
from typing import TypeAlias

from rose.slo.targets import SLO


@dataclass(frozen=True, slots=True)
class ServingDevice:
    """A device, or a group of them, that one engine serves on.

    Args:
        name: unique.
        kv_bytes: all of serving's KV pool, lent parts included.
        reserve_bytes: that serving can always have; no loan touches it.
        slab_bytes: the least that is lent; loans are whole slabs.
        slo: what serving's requests were promised.
    """

    name: str
    kv_bytes: int
    reserve_bytes: int
    slab_bytes: int
    slo: SLO

    def whole_slabs(self, size_bytes: float) -> int:
        """Return the bytes of the whole slabs in `size_bytes`, at least 0."""
        return max(0, int(size_bytes // self.slab_bytes)) * self.slab_bytes


@dataclass(frozen=True, slots=True)
class Observation:
    """One reading of a device.

    Args:
        device: which.
        at_ms: when it was read, on the clock of the decisions.
        kv_used: the share of the pool that serving's own requests hold, 0 to 1. What is lent is
            not in it.
        running: requests that serving works on.
        waiting: requests that it has not begun.
        preempted: requests that it put back for want of KV since the reading before.
        ttft_ms_p99: to the first token, of the last seconds; infinite when it is beyond what is
            measured, None when no request had one.
        tpot_ms_p99: between tokens; likewise.
        lent_bytes: on loan now, as the device's executor says; None when nobody asked it.
        revocations: loans that it took back by itself, counted since it started.
        revoked_share: how far what was on loan fell with those since the reading before, 0 to 1;
            None when nobody says.
    """

    device: ServingDevice
    at_ms: float
    kv_used: float
    running: int
    waiting: int
    preempted: int = 0
    ttft_ms_p99: float | None = None
    tpot_ms_p99: float | None = None
    lent_bytes: int | None = None
    revocations: int = 0
    revoked_share: float | None = None

    @property
    def used_bytes(self) -> int:
        """What serving's requests hold, rounded up."""
        return math.ceil(self.kv_used * self.device.kv_bytes)


@dataclass(frozen=True, slots=True)
class Unread:
    """A device whose telemetry could not be had.

    Args:
        device: which.
        why: one sentence.
    """

    device: ServingDevice
    why: str


Reading: TypeAlias = Observation | Unread
