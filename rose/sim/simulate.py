"""Run one scheme on one trace in virtual time."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rose.errors import InvalidArgument
from rose.sim.clairvoyant import Clairvoyant
from rose.sim.device import DeviceModel, Noise
from rose.sim.governor import Governor
from rose.sim.governors import Alone, HostWindow, Priority, RosePaper, ShareAll, StaticSplit, Valve
from rose.sim.machine import Machine, Observer, Served, Tally
from rose.sim.outcome import ArmOutcome, RequestOutcome, missed
from rose.sim.request import Request, check_requests
from rose.slo import SLO, Policy
from rose.units import NS_PER_MS

# The order in which reports show them.
SCHEMES: Final = (
    "alone",
    "share_all",
    "priority",
    "host_window",
    "rose_paper",
    "valve",
    "static_split",
    "clairvoyant",
)


def simulate(
    requests: Sequence[Request],
    device: DeviceModel,
    scheme: str,
    *,
    slo: SLO,
    policy: Policy | None = None,
    seed: int,
    observer: Observer | None = None,
) -> ArmOutcome:
    """Serve a trace under a scheme, with endless rollout work behind it.

    Equal arguments give equal outcomes. Arms of one seed see the same noise: step i of serving has
    the same factor in each of them, and so has step j of rollouts.

    Args:
        requests: by arrival.
        device: what things cost.
        scheme: one of `SCHEMES`.
        slo: what serving was promised.
        policy: rose's knobs; other schemes do not look at it.
        seed: of the noise, >= 0.
        observer: told about everything that begins and ends.

    Raises:
        InvalidArgument: an unknown scheme, or requests that are not a trace.
    """
    check_requests(requests)
    step_noise, rollout_noise = _noises(seed, device)
    governor = _governor(scheme, requests, device, slo=slo, seed=seed)
    machine = Machine(
        requests,
        device,
        governor,
        step_noise=step_noise,
        rollout_noise=rollout_noise,
        observer=observer,
    )
    return _outcome(scheme, machine.run())


def _noises(seed: int, device: DeviceModel) -> tuple[Noise, Noise]:
    step, rollout = np.random.default_rng(seed).spawn(2)
    return Noise(step, sigma=device.noise), Noise(rollout, sigma=device.noise)


def _governor(
    scheme: str, requests: Sequence[Request], device: DeviceModel, *, slo: SLO, seed: int
) -> Governor:
    simple: dict[str, type[Governor]] = {
        "alone": Alone,
        "share_all": ShareAll,
        "priority": Priority,
        "host_window": HostWindow,
        "valve": Valve,
        "static_split": StaticSplit,
    }
    if scheme in simple:
        return simple[scheme]()
    if scheme == "rose_paper":
        return RosePaper(slo, device.step_ms)
    if scheme == "clairvoyant":
        alone = simulate(requests, device, "alone", slo=slo, seed=seed)
        step_noise, rollout_noise = _noises(seed, device)
        return Clairvoyant(
            requests,
            device,
            slo,
            step_noise=step_noise,
            rollout_noise=rollout_noise,
            missed_alone=missed(alone, slo=slo),
        )
    raise InvalidArgument(f"scheme {scheme!r} is not known: use {', '.join(SCHEMES)}")


def _outcome(scheme: str, tally: Tally) -> ArmOutcome:
    return ArmOutcome(
        scheme=scheme,
        requests=tuple(_request_outcome(one) for one in tally.served),
        wall_ms=tally.ended_ns / NS_PER_MS,
        serving_busy_ms=tally.serving_busy_ns / NS_PER_MS,
        harvest_ms=tally.harvest_ns / NS_PER_MS,
        segments=tally.segments,
        pauses_ms=tuple(ns / NS_PER_MS for ns in tally.pauses_ns),
        blocked_ms=tuple(ns / NS_PER_MS for ns in tally.blocked_ns),
        lent_ms=tally.lent_ns / NS_PER_MS,
        grants=0,
        refusals=0,
    )


def _request_outcome(served: Served) -> RequestOutcome:
    gaps = max(1, served.tokens - 1)
    return RequestOutcome(
        ttft_ms=(served.first_ns - served.arrived_ns) / NS_PER_MS,
        longest_gap_ms=served.longest_gap_ns / NS_PER_MS,
        mean_tpot_ms=(served.last_ns - served.first_ns) / NS_PER_MS / gaps,
        output_tokens=served.tokens,
    )
