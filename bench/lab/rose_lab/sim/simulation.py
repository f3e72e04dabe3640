"""Run one scheme on one trace in virtual time."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from rose.errors import InvalidArgument
from rose.slo import SLO, Policy
from rose.slo.verify import verify_log
from rose.units import NS_PER_MS
from rose_lab.sim.clairvoyant import Clairvoyant, within_targets
from rose_lab.sim.core import CoreGovernor
from rose_lab.sim.device import DeviceModel, Noise
from rose_lab.sim.governor import Governor
from rose_lab.sim.governors import (
    HostWindow,
    NoRollouts,
    Priority,
    RosePaper,
    ShareAll,
    StaticSplit,
    Valve,
)
from rose_lab.sim.machine import Machine, Observer, Served, Tally
from rose_lab.sim.outcome import ArmOutcome, RequestOutcome, missed
from rose_lab.sim.request import Request, check_requests

_SIMPLE: Final[dict[str, type[Governor]]] = {
    "alone": NoRollouts,
    "share_all": ShareAll,
    "priority": Priority,
    "host_window": HostWindow,
    "valve": Valve,
    "static_split": StaticSplit,
}
SLOWDOWNS: Final = {"rose_idle": 0.0, "rose": 0.05, "rose_slack": math.inf}
"""`SLO.slowdown` of each scheme of rose."""

SCHEMES: Final = (*_SIMPLE, "rose_paper", *SLOWDOWNS, "clairvoyant")
"""All schemes, in the order of reports."""


def default_policy(device: DeviceModel) -> Policy:
    """Return rose's parameters for a GPU with a known roofline, as an operator would set them.

    Args:
        device: cost model, whose coefficients without noise initialise the latency model.
    """
    segment_ms = device.layers_per_segment * device.layer_ms + device.gate_ms
    return Policy(
        # A quantum may be as long as the slack of a 50 ms target.
        max_segments=max(1, round(40 / segment_ms)),
        # One round trip of a host signal, since no thread is descheduled here.
        signal_ms=max(2 * device.signal_ms, 1e-3),
        segment_prior_ms=1.1 * segment_ms,
        latency_prior_ms=(
            device.base_ms,
            device.sequence_ms,
            device.context_ms,
            device.prefill_ms,
            0.0,
        ),
    )


def simulate(
    requests: Sequence[Request],
    device: DeviceModel,
    scheme: str,
    *,
    slo: SLO,
    policy: Policy | None = None,
    slowdown: float | None = None,
    seed: int,
    log_path: str = "",
    observer: Observer | None = None,
    until_ms: float = 0.0,
) -> ArmOutcome:
    """Serve a trace under a scheme, while rollout work is always waiting to run.

    Equal arguments give equal outcomes. Arms of one seed see the same noise: step i of serving has
    the same factor in each arm, and so has step j of rollouts.

    Args:
        requests: requests in order of arrival.
        device: cost model.
        scheme: one of `SCHEMES`.
        slo: serving's targets.
        policy: parameters of a scheme of rose; None: `default_policy`. Other schemes ignore them.
        slowdown: `SLO.slowdown` of a scheme of rose; None for the scheme's own in `SLOWDOWNS`.
        seed: seed of the noise, >= 0.
        log_path: certificate log to write and then verify, for a scheme of rose; "": no log.
        observer: called at every start and end.
        until_ms: time until which rollouts run at least, even after every request is served.

    Raises:
        InvalidArgument: the scheme is unknown or writes no log, or the requests are invalid.
        Unavailable: the log cannot be written.
    """
    check_requests(requests)
    if seed < 0:
        raise InvalidArgument(f"seed is {seed}, give a whole number of at least 0")
    if log_path and scheme not in SLOWDOWNS:
        raise InvalidArgument(f"scheme {scheme!r} writes no certificates: leave log_path empty")
    if scheme in SLOWDOWNS:
        slo = replace(slo, slowdown=SLOWDOWNS[scheme] if slowdown is None else slowdown)
    governor = _governor(
        scheme, requests, device, slo=slo, policy=policy, seed=seed, log_path=log_path
    )
    outcome = govern(
        requests, device, governor, slo=slo, seed=seed, observer=observer, until_ms=until_ms
    )
    outcome = replace(outcome, scheme=scheme)
    if isinstance(governor, CoreGovernor):
        return _certified(outcome, governor, log_path)
    return outcome


def govern(
    requests: Sequence[Request],
    device: DeviceModel,
    governor: Governor,
    *,
    slo: SLO,
    seed: int,
    observer: Observer | None = None,
    until_ms: float = 0.0,
) -> ArmOutcome:
    """Like `simulate`, but under the given governor, which no other run may have used."""
    step_noise, rollout_noise = noises(seed, device)
    machine = Machine(
        requests,
        device,
        governor,
        slo=slo,
        step_noise=step_noise,
        rollout_noise=rollout_noise,
        observer=observer,
        until_ms=until_ms,
    )
    return _outcome(type(governor).__name__, machine.run())


def noises(seed: int, device: DeviceModel) -> tuple[Noise, Noise]:
    """Return the noise of serving's and of rollouts' steps, the same in every run of this seed."""
    step, rollout = np.random.default_rng(seed).spawn(2)
    return Noise(step, sigma=device.noise), Noise(rollout, sigma=device.noise)


def _governor(
    scheme: str,
    requests: Sequence[Request],
    device: DeviceModel,
    *,
    slo: SLO,
    policy: Policy | None,
    seed: int,
    log_path: str,
) -> Governor:
    if scheme in _SIMPLE:
        return _SIMPLE[scheme]()
    if scheme == "rose_paper":
        return RosePaper(slo, device.step_ms)
    if scheme in SLOWDOWNS:
        return CoreGovernor(slo, policy or default_policy(device), device, log_path=log_path)
    if scheme == "clairvoyant":
        alone = simulate(requests, device, "alone", slo=slo, seed=seed)
        step_noise, rollout_noise = noises(seed, device)
        return Clairvoyant(
            requests,
            device,
            within_targets(requests, slo, missed_alone=missed(alone, slo=slo)),
            patience_ms=slo.ttft_ms,
            step_noise=step_noise,
            rollout_noise=rollout_noise,
        )
    raise InvalidArgument(f"scheme {scheme!r} is not known: use {', '.join(SCHEMES)}")


def _certified(outcome: ArmOutcome, governor: CoreGovernor, log_path: str) -> ArmOutcome:
    """Add the core's counts and, if there is a log, the verifier's result."""
    governor.log.close()
    outcome = replace(outcome, grants=governor.grants, refusals=governor.refusals)
    if not log_path:
        return outcome
    verification = verify_log(Path(log_path))
    return replace(
        outcome,
        certificates_verified=verification.verified,
        violations=tuple(verification.violations),
    )


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
        grants=tally.segments,
        refusals=0,
    )


def _request_outcome(served: Served) -> RequestOutcome:
    gaps = max(1, served.tokens - 1)
    return RequestOutcome(
        ttft_ms=(served.first_ns - served.arrived_ns) / NS_PER_MS,
        longest_gap_ms=served.longest_gap_ns / NS_PER_MS,
        mean_tpot_ms=(served.last_ns - served.first_ns) / NS_PER_MS / gaps,
        output_tokens=served.tokens,
        late_gaps=served.late_gaps,
    )
