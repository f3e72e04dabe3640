"""Bring a trace to a load: how much of the device serving alone would be busy with it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rose.errors import InvalidArgument
from rose.sim.device import DeviceModel
from rose.sim.request import Request
from rose.sim.simulation import simulate
from rose.slo import SLO

_TRIES: Final = 40
_CLOSE_ENOUGH: Final = 0.005
_NO_TARGET: Final = SLO(ttft_ms=1e9, tpot_ms=1e9)


def at_load(
    requests: Sequence[Request], device: DeviceModel, *, busy: float, seed: int
) -> list[Request]:
    """Stretch or squeeze the arrivals until serving alone keeps the device so busy.

    Bursts keep their shape, and requests their lengths.

    Args:
        requests: at least one.
        device: what things cost.
        busy: the share of the time in which a serving step runs, in (0, 1); met within 0.005
            where the trace allows it: a request that is alone cannot be made denser.
        seed: of the noise.

    Raises:
        InvalidArgument: no requests, or a share out of range.
    """
    if not requests or not 0 < busy < 1:
        raise InvalidArgument(f"a load needs requests, and a share in (0, 1), not {busy}")
    low, high = 1e-3, 1e3
    stretched = list(requests)
    for _ in range(_TRIES):
        middle = (low * high) ** 0.5
        stretched = [replace(one, arrival_ms=one.arrival_ms * middle) for one in requests]
        found = simulate(stretched, device, "alone", slo=_NO_TARGET, seed=seed).busy
        if abs(found - busy) <= _CLOSE_ENOUGH:
            break
        # More room between arrivals, less to do.
        low, high = (middle, high) if found > busy else (low, middle)
    return stretched
