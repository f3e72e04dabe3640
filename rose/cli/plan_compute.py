"""What a device that serves would lend of its compute, and what that costs serving: by a model."""

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
    """What is lent at one slowdown.

    Args:
        slowdown: that.
        share: of the device's compute.
        price: latencies over those of serving alone, as `rose.sim.outcome.price` has it.
    """

    slowdown: float
    share: float
    price: dict[str, float]


def plan_compute(
    serving: ModelShape, rollout: ModelShape, gpu: str, *, tp: int, load: float, slo: SLO
) -> tuple[ComputeLent, ...]:
    """Return what is lent at each of `SLOWDOWNS`.

    Args:
        serving: model.
        rollout: model.
        gpu: whose data sheet says how long steps take.
        tp: devices of a model.
        load: share of the time in which a device that only serves has a request, below 1; the
            requests are as those of public chats, in bursts.
        slo: what serving was promised.

    Raises:
        InvalidArgument: the GPU has no figures, or a model cannot be divided so.
    """
    device = roofline_cost(serving, gpu, tp=tp).device_model(
        roofline_cost(rollout, gpu, tp=tp), rollout_layers=rollout.layers
    )
    alone = Lender(device, "alone", slo, mix_of(SyntheticTraffic(load=load, minute_peak=1.0)))
    rates = np.full(_PIECES, rate_of(alone, load))
    pieces = Pieces.draw(rates, devices=_DEVICES, shared=0.0, random=np.random.default_rng(0))
    before = pieces.felt(alone).quantile
    lenders = [
        replace(alone, scheme="rose", slo=replace(slo, slowdown=slowdown)) for slowdown in SLOWDOWNS
    ]
    return tuple(
        ComputeLent(
            one.slo.slowdown,
            float(pieces.columns(one)[0].mean()),
            price(pieces.felt(one).quantile, before),
        )
        for one in lenders
    )
