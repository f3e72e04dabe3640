"""Model-based estimate of the compute that a serving device can lend, and of serving's slowdown."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rose.memory.model_shape import ModelShape
from rose.sim.cluster.lending import Lender, Pieces, rate_of
from rose.sim.cluster.lending_devices import roofline_cost
from rose.sim.outcome import price
from rose.sim.scenario.parts import SyntheticTraffic
from rose.sim.scenario.traffic import mix_of
from rose.slo import SLO

SLOWDOWNS: Final = (0.0, 0.05, math.inf)
_DEVICES: Final = 16
_PIECES: Final = 16


@dataclass(frozen=True, slots=True)
class ComputeLent:
    """Lent compute at one slowdown.

    Args:
        slowdown: allowed slowdown of running requests.
        share: lent share of the device's compute.
        price: latencies relative to serving alone, by `rose.sim.outcome.price`.
    """

    slowdown: float
    share: float
    price: dict[str, float]


def plan_compute(
    serving: ModelShape, rollout: ModelShape, gpu: str, *, tp: int, load: float, slo: SLO
) -> tuple[ComputeLent, ...]:
    """Return the lent compute at each of `SLOWDOWNS`.

    Args:
        serving: serving's model.
        rollout: the rollouts' model.
        gpu: GPU name; step times come from its data sheet.
        tp: devices per model.
        load: share of time, below 1, in which a device that only serves has a request. Requests
            follow public chat traces, in bursts.
        slo: serving's targets.

    Raises:
        InvalidArgument: the GPU is unknown, or a model cannot be divided by `tp`.
    """
    device = roofline_cost(serving, gpu, tp=tp).device_model(
        roofline_cost(rollout, gpu, tp=tp), rollout_layers=rollout.layers
    )
    alone = Lender(device, "alone", slo, mix_of(SyntheticTraffic(load=load, minute_peak=1.0)))
    rates = np.full(_PIECES, rate_of(alone, load))
    pieces = Pieces.draw(rates, devices=_DEVICES, shared=0.0, random=np.random.default_rng(0))
    before = pieces.latencies(alone).quantile
    lenders = [
        replace(alone, scheme="rose", slo=replace(slo, slowdown=slowdown)) for slowdown in SLOWDOWNS
    ]
    return tuple(
        ComputeLent(
            one.slo.slowdown,
            float(pieces.columns(one)[0].mean()),
            price(pieces.latencies(one).quantile, before),
        )
        for one in lenders
    )
