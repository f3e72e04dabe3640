"""Scales requests to a load, which is the share of time in which serving alone is busy."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from rose.errors import InvalidArgument
from rose.slo import SLO
from rose_lab.sim.device import DeviceModel
from rose_lab.sim.request import Request
from rose_lab.sim.simulation import simulate

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
    """Return requests at a rate that keeps serving alone busy for the share `busy` of the time.

    The rate is found by bisection. Busy time is not proportional to the rate, because concurrent
    requests share steps.

    Args:
        requests_at: function that returns the requests at a given rate; `stretched` makes such a
            function from a trace.
        device: cost model.
        busy: share of the time in which a serving step runs, in (0, 1). The returned requests meet
            it within 0.004 if possible.
        seed: seed of the noise.
        rate: rate that is tried first, > 0.

    Returns:
        The requests whose busy share is closest to `busy`.

    Raises:
        InvalidArgument: there are no requests, or the share is out of range.
    """
    if not 0 < busy < 1:
        raise InvalidArgument(f"busy must be above 0 and below 1, got {busy}")
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
        raise InvalidArgument("a load needs requests, but the trace has none")
    return closest


def stretched(requests: Sequence[Request]) -> Callable[[float], list[Request]]:
    """Return a function that divides all arrival times by a rate; lengths stay the same."""
    return lambda rate: [replace(one, arrival_ms=one.arrival_ms / rate) for one in requests]
