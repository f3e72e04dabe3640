"""Observations of serving devices, and whether serving is under pressure."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from rose.slo.targets import SLO

# Ratios of P99 latency to its target. Above NEAR serving is under pressure; above LATE it has
# missed its target. Rollouts use the slack of later tokens on purpose, so the P99 of TPOT lies
# close to its target, and engines report latencies in buckets. So TPOT counts as late only at a
# ratio that neither effect explains.
_TTFT_NEAR: Final = 0.9
_TTFT_LATE: Final = 1.0
_TPOT_NEAR: Final = 1.1
_TPOT_LATE: Final = 1.5
# With more waiting requests than this, serving is under pressure. A few requests wait even on a
# lightly loaded engine: requests that arrive during a step wait for its end.
_WAITING_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class ServingDevice:
    """A device, or a group of devices, on which one engine serves.

    Args:
        name: unique name.
        kv_bytes: size of serving's KV pool, lent parts included.
        reserve_bytes: part of the pool that only serving may use; never lent.
        slab_bytes: unit of loans.
        slo: latency targets of serving's requests.
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
        device: device that was read.
        at_ms: time of the reading, on the clock of the decisions.
        kv_used: share of the pool that serving's own requests hold, 0 to 1; lent memory excluded.
        running: number of running requests.
        waiting: number of requests not started.
        preempted: number of preemptions for want of KV since the last reading.
        ttft_ms_p99: P99 time to first token of the last seconds; infinite beyond the measured
            range, None without such a request.
        tpot_ms_p99: P99 time between tokens of the last seconds; infinite or None as above.
        lent_bytes: memory on loan now, from the device's executor; None if unknown.
        revocations: loans that the executor revoked by itself since it started.
        revoked_share: share of the loan revoked since the last reading, 0 to 1; None if unknown.
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
        """Memory held by serving's requests, rounded up."""
        return math.ceil(self.kv_used * self.device.kv_bytes)


@dataclass(frozen=True, slots=True)
class Unread:
    """A failed reading of a device.

    Args:
        device: device that could not be read.
        why: reason, one sentence.
    """

    device: ServingDevice
    why: str


Reading: TypeAlias = Observation | Unread


class Severity(Enum):
    """Action that pressure requires."""

    MEMORY = "the loan is cut to what fits"
    NEAR = "a part of the loan goes back"
    LATE = "all of the loan goes back"


@dataclass(frozen=True, slots=True)
class Pressure:
    """A reason to shrink a loan.

    Args:
        severity: action required.
        why: reason, one sentence.
    """

    severity: Severity
    why: str


def pressure_of(seen: Observation, lent_bytes: int) -> Pressure | None:
    """Return the gravest pressure; None while serving has all it needs.

    Args:
        seen: reading of the device.
        lent_bytes: bytes on loan from that device.
    """
    slo = seen.device.slo
    tails = (
        ("first tokens", seen.ttft_ms_p99, slo.ttft_ms, _TTFT_NEAR, _TTFT_LATE),
        ("later tokens", seen.tpot_ms_p99, slo.tpot_ms, _TPOT_NEAR, _TPOT_LATE),
    )
    near = []
    for name, p99_ms, target_ms, near_ratio, late_ratio in tails:
        if p99_ms is None or p99_ms <= near_ratio * target_ms:
            continue
        why = f"{name} have a P99 of {p99_ms:.0f} ms, with a target of {target_ms:g} ms"
        if p99_ms > late_ratio * target_ms:
            return Pressure(Severity.LATE, why)
        near.append(why)
    if seen.preempted:
        return Pressure(Severity.LATE, f"{seen.preempted} requests were preempted for want of KV")
    if near:
        return Pressure(Severity.NEAR, near[0])
    if seen.waiting > _WAITING_MAX:
        return Pressure(Severity.NEAR, f"{seen.waiting} requests wait to be served")
    if lent_bytes > free_bytes(seen):
        return Pressure(Severity.MEMORY, "serving's requests and reserve need the lent memory")
    return None


def free_bytes(seen: Observation) -> int:
    """Return the memory that neither serving's requests nor its reserve need, in whole slabs."""
    device = seen.device
    return device.whole_slabs(device.kv_bytes - seen.used_bytes - device.reserve_bytes)
