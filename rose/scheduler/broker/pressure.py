"""Whether serving needs its device: read off one observation, and off what is lent there."""

from dataclasses import dataclass
from enum import Enum

from rose.scheduler.broker.observation import LatencyWindow, Observation
from rose.scheduler.broker.settings import BrokerSettings


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


def pressure_of(seen: Observation, lent_bytes: int, settings: BrokerSettings) -> Pressure | None:
    """Return the gravest pressure, or None while serving has all it needs.

    Args:
        seen: of the device.
        lent_bytes: on loan there.
        settings: what counts as pressure.
    """
    slo = seen.device.slo
    tails = (
        ("first tokens", seen.ttft, slo.ttft_ms),
        ("later tokens", seen.tpot, slo.tpot_ms),
    )
    for name, window, target_ms in tails:
        if _is_over(window, target_ms):
            return Pressure(Severity.LATE, _tail(name, window, "over", target_ms))
    if seen.waiting > settings.waiting_max:
        return Pressure(Severity.NEAR, f"{seen.waiting} requests wait for serving")
    for name, window, target_ms in tails:
        if _is_over(window, settings.near_share * target_ms):
            return Pressure(Severity.NEAR, _tail(name, window, "near", target_ms))
    if lent_bytes > free_bytes(seen):
        return Pressure(Severity.MEMORY, "serving's requests and its reserve need what is lent")
    return None


def free_bytes(seen: Observation) -> int:
    """Return what serving's requests and its reserve leave of the pool, in whole slabs."""
    device = seen.device
    return device.whole_slabs(device.kv_bytes - seen.used_bytes - device.reserve_bytes)


def _is_over(window: LatencyWindow | None, limit_ms: float) -> bool:
    return window is not None and window.p99_ms > limit_ms


def _tail(name: str, window: LatencyWindow | None, where: str, target_ms: float) -> str:
    p99_ms = 0.0 if window is None else window.p99_ms
    return f"{name} have a P99 of {p99_ms:.0f} ms, {where} their {target_ms:g} ms"
