"""What the broker is told of devices that serve, and whether serving needs one."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from rose.slo.targets import SLO

# Ratios of a tail (P99) to its target. Near is pressure before a promise is broken, late means that
# one is. Rollouts spend the slack under the target of later tokens on purpose, so that tail lies
# close to it, and engines count in buckets: late is what no quantum of rollouts explains.
_TTFT_NEAR: Final = 0.9
_TTFT_LATE: Final = 1.0
_TPOT_NEAR: Final = 1.1
_TPOT_LATE: Final = 1.5
# Requests that wait for serving; more are pressure. Those that come during a step wait for its end
# on an idle engine, too.
_WAITING_MAX: Final = 3


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


class Severity(Enum):
    """What pressure asks for."""

    MEMORY = "the loan is cut to what fits"
    NEAR = "a part of the loan goes back"
    LATE = "all of the loan goes back"


@dataclass(frozen=True, slots=True)
class Pressure:
    """A reason to give back.

    Args:
        severity: how much.
        why: one sentence.
    """

    severity: Severity
    why: str


def pressure_of(seen: Observation, lent_bytes: int) -> Pressure | None:
    """Return the gravest pressure, or None while serving has all it needs.

    Args:
        seen: of the device.
        lent_bytes: on loan there.
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
        return Pressure(Severity.LATE, f"{seen.preempted} requests were put back for want of KV")
    if near:
        return Pressure(Severity.NEAR, near[0])
    if seen.waiting > _WAITING_MAX:
        return Pressure(Severity.NEAR, f"{seen.waiting} requests wait for serving")
    if lent_bytes > free_bytes(seen):
        return Pressure(Severity.MEMORY, "serving's requests and its reserve need what is lent")
    return None


def free_bytes(seen: Observation) -> int:
    """Return what serving's requests and its reserve leave of the pool, in whole slabs."""
    device = seen.device
    return device.whole_slabs(device.kv_bytes - seen.used_bytes - device.reserve_bytes)
