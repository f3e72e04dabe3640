"""Bring requests to a load: how much of the device serving alone would be busy with them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from rose.errors import InvalidArgument
from rose.sim.device import DeviceModel
from rose.sim.request import Request
from rose.sim.simulation import simulate
from rose.slo import SLO

_TRIES: Final = 30
_CLOSE_ENOUGH: Final = 0.004
_NO_TARGET: Final = SLO(ttft_ms=1e9, tpot_ms=1e9)


def at_load(
    requests_at: Callable[[float], Sequence[Request]],
    device: DeviceModel,
    *,
    busy: float,
    seed: int,
    rate: float = 1.0,
) -> list[Request]:
    """Find the rate at which serving alone keeps the device so busy, by bisection.

    Busy time is not proportional to the rate: requests that come together share steps.

    Args:
        requests_at: returns requests at a rate; `stretched` those of a trace.
        device: what things cost.
        busy: the share of the time in which a serving step runs, in (0, 1); met within 0.004
            where the requests allow it: one that is alone cannot be made denser.
        seed: of the noise.
        rate: where the search begins, > 0.

    Returns:
        The requests that came closest.

    Raises:
        InvalidArgument: no requests, or a share out of range.
    """
    if not 0 < busy < 1:
        raise InvalidArgument(f"a load is a share in (0, 1), not {busy}")
    slower, faster = 0.0, 0.0
    tried: list[tuple[float, list[Request]]] = []
    for _ in range(_TRIES):
        requests = list(requests_at(rate))
        found = simulate(requests, device, "alone", slo=_NO_TARGET, seed=seed).busy
        tried.append((abs(found - busy), requests))
        if abs(found - busy) <= _CLOSE_ENOUGH:
            break
        if found < busy:
            slower = rate
            rate = (rate + faster) / 2 if faster else 2 * rate
        else:
            faster = rate
            rate = (slower + rate) / 2
    closest = min(tried, key=lambda one: one[0])[1]
    if not closest:
        raise InvalidArgument("a load needs requests, and there is none at any rate")
    return closest


def stretched(requests: Sequence[Request]) -> Callable[[float], list[Request]]:
    """Return what makes requests denser by a rate: bursts keep their shape, requests lengths."""
    return lambda rate: [replace(one, arrival_ms=one.arrival_ms / rate) for one in requests]
