"""What serving is asked on borrowed GPUs: the traffic of a scenario as requests of each device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.sim.cluster.lending_fluid import lend_as_fluid
from rose.sim.cluster.lending_kv import KvPool, ReservedKv
from rose.sim.cluster.lending_traffic import (
    Envelope,
    FleetTraffic,
    Lengths,
    Routing,
    bursty,
    route,
)
from rose.sim.device import DeviceModel
from rose.sim.request import Request
from rose.sim.scenario.distributions import Distribution
from rose.sim.scenario.parts import DailyTraffic, SyntheticTraffic, TraceTraffic, Traffic
from rose.sim.scenario.sessions import Sessions
from rose.slo import SLO
from rose.units import MS_PER_S

Column = npt.NDArray[np.float64]

_LENGTHS: Final = 4096
_WINDOWS: Final = 120
# Rates of files are of ten minutes.
RATES_WINDOW_MS: Final = 600_000.0
# A pilot of so many devices and seconds tells how busy a rate makes them; each halving of the
# interval doubles what is known of the rate.
_PILOT_DEVICES: Final = 4
_PILOT_MS: Final = 600_000.0
_HALVINGS: Final = 12
# The standard normal's quantile at 1 - 1/3600: the busiest second of an hour.
_BUSIEST: Final = 3.45
# Bursts of a service reach all of its devices, in part.
_SHARED: Final = 0.5


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the files say that scenarios name, by the path as it is written there.

    Args:
        requests: of traces of serving, by arrival.
        rates: of files of rates: of each model, (w,) float64, one for each ten minutes.
        sessions: of traces of agents.
    """

    requests: Mapping[str, Sequence[Request]] = field(default_factory=dict)
    rates: Mapping[str, Mapping[str, Column]] = field(default_factory=dict)
    sessions: Mapping[str, Sessions] = field(default_factory=dict)


def fleet_traffic(
    traffic: Traffic,
    *,
    inputs: Inputs,
    device: DeviceModel,
    pool: KvPool,
    slo: SLO,
    devices: int,
    duration_ms: float,
    random: np.random.Generator,
) -> FleetTraffic:
    """Return the requests of some devices that are all alike.

    The rate is what keeps them busy for the load's share of the time while nothing is lent.

    Args:
        traffic: what the scenario says.
        inputs: what its files say.
        device: of each.
        pool: of each.
        slo: what was promised.
        devices: > 0.
        duration_ms: > 0.
        random: drawn from.

    Raises:
        InvalidArgument: a file is not among the inputs, or has nothing of what is asked for.
    """

    def busy(asked: FleetTraffic, horizon_ms: float) -> float:
        """Return the share of the time in which a device has a request."""
        alone = lend_as_fluid(
            asked, device, "alone", kv=ReservedKv(0.0), pool=pool, slo=slo, horizon_ms=horizon_ms
        )
        return float(alone.busy.mean())

    if isinstance(traffic, TraceTraffic):
        requests = found(inputs.requests, traffic.trace, "trace")
        return _replayed(requests, traffic.load, busy, devices=devices, duration_ms=duration_ms)
    lengths = _lengths(traffic.prompt_tokens, traffic.output_tokens, random)
    wave, window_ms, bursts = _shape(traffic, inputs)
    prompts_rps = MS_PER_S / (device.prefill_ms * float(lengths.prompt_tokens.mean()))
    # Prompts alone keep it busy for so much; outputs come on top.
    rate_rps = _rate(traffic.load, busy, lengths, most_rps=prompts_rps * traffic.load)
    return bursty(
        random,
        envelope=Envelope(rate_rps * wave, window_ms),
        lengths=lengths,
        devices=devices,
        duration_ms=duration_ms,
        variation=burst_variation(bursts),
        shared=_SHARED,
        from_ms=MS_PER_S * traffic.from_s if isinstance(traffic, DailyTraffic) else 0.0,
    )


def burst_variation(peak: float) -> float:
    """Return how much seconds vary if the busiest of an hour has `peak` times the mean, >= 1.

    It is the standard deviation over the mean of a Gamma factor; its quantile by Wilson and
    Hilferty's formula, which is good to a few percent where it is used.
    """
    low, high = 0.0, 3.0
    for _ in range(40):
        middle = (low + high) / 2
        spread = middle**2 / 9
        reached = max(0.0, 1 - spread + _BUSIEST * np.sqrt(spread)) ** 3
        low, high = (middle, high) if reached < peak else (low, middle)
    return low if low > 1e-6 else 0.0


def slow_wave(peak: float, windows: int = _WINDOWS) -> Column:
    """Return (windows,) of mean 1, one wave whose highest is about `peak` times its mean, >= 1."""
    angle = 2 * np.pi * (np.arange(windows) + 0.5) / windows
    low, high = 0.0, 300.0
    for _ in range(60):
        middle = (low + high) / 2
        wave = np.exp(middle * (np.cos(angle) - 1))
        low, high = (middle, high) if wave.max() / wave.mean() < peak else (low, middle)
    wave = np.exp(low * (-np.cos(angle) - 1))
    shaped: Column = wave / wave.mean()
    return shaped


def found(known: Mapping[str, object], path: str, what: str) -> object:
    """Return what was read of a file.

    Raises:
        InvalidArgument: it was not read.
    """
    if path not in known:
        raise InvalidArgument(f"{what}: {path} was not read; give it with the scenario's inputs")
    return known[path]


def _shape(traffic: DailyTraffic | SyntheticTraffic, inputs: Inputs) -> tuple[Column, float, float]:
    """Return rates over their mean, the length of a window, and the busiest second over its own."""
    if isinstance(traffic, SyntheticTraffic):
        wave = slow_wave(traffic.minute_peak)
        window_ms = MS_PER_S * traffic.wave_s / len(wave)
        return wave, window_ms, traffic.second_peak / traffic.minute_peak
    of_models = found(inputs.rates, traffic.rates, "rates")
    if not isinstance(of_models, Mapping) or traffic.model not in of_models:
        raise InvalidArgument(f"model: {traffic.rates} has no {traffic.model}")
    rates = np.asarray(of_models[traffic.model], dtype=np.float64)
    return rates / rates.mean(), RATES_WINDOW_MS, traffic.second_peak


def _rate(
    load: float,
    busy: Callable[[FleetTraffic, float], float],
    lengths: Lengths,
    *,
    most_rps: float,
) -> float:
    """Return the requests per second that keep a device busy for `load` of the time."""
    low, high = 0.0, most_rps
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        pilot = bursty(
            np.random.default_rng(0),
            envelope=Envelope(np.array([middle]), _PILOT_MS),
            lengths=lengths,
            devices=_PILOT_DEVICES,
            duration_ms=_PILOT_MS,
            variation=0.0,
        )
        low, high = (middle, high) if busy(pilot, _PILOT_MS) < load else (low, middle)
    return (low + high) / 2


def _lengths(prompt: Distribution, output: Distribution, random: np.random.Generator) -> Lengths:
    prompts, outputs = (
        np.maximum(1, np.rint(one.draw(random, _LENGTHS))).astype(np.int64)
        for one in (prompt, output)
    )
    return Lengths(prompts, outputs)


def _replayed(
    requests: object,
    load: float,
    busy: Callable[[FleetTraffic, float], float],
    *,
    devices: int,
    duration_ms: float,
) -> FleetTraffic:
    """Return a trace again and again, at the speed that meets the load, over all devices."""
    if not (isinstance(requests, Sequence) and len(requests) > 1):
        raise InvalidArgument("trace: it needs two requests at least")
    span_ms = requests[-1].arrival_ms - requests[0].arrival_ms
    span_ms *= 1 + 1 / len(requests)  # up to the first of the next round

    def sped(speed: float, until_ms: float, over: int) -> FleetTraffic:
        rounds = int(np.ceil(until_ms * speed / span_ms))
        asked = [
            Request(at_ms, one.prompt_tokens, one.output_tokens)
            for again in range(max(1, rounds))
            for one in requests
            if (at_ms := (one.arrival_ms - requests[0].arrival_ms + again * span_ms) / speed)
            < until_ms
        ]
        return route(asked, devices=over, routing=Routing.ROUND_ROBIN)

    low, high = -10.0, 10.0  # powers of two
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        pilot_ms = min(duration_ms, span_ms, _PILOT_MS)
        reached = busy(
            sped(_PILOT_DEVICES / devices * 2**middle, pilot_ms, _PILOT_DEVICES), pilot_ms
        )
        low, high = (middle, high) if reached < load else (low, middle)
    return sped(2 ** ((low + high) / 2), duration_ms, devices)
