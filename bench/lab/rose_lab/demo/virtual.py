"""Arms in virtual time: real decisions on a modelled device."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from rose.errors import InvalidArgument
from rose.slo import SLO
from rose.units import MS_PER_S
from rose_lab.demo.record import Answered, Audit, RunPlan, RunRecord, Slice, SliceCounts
from rose_lab.demo.schemes import ABLATED, SHARE_ALL, Scheme
from rose_lab.sim.device import DeviceModel
from rose_lab.sim.outcome import ArmOutcome
from rose_lab.sim.request import Request
from rose_lab.sim.simulation import default_policy, simulate
from rose_lab.traces import Trace

_SOLO_STEPS: Final = 1000


@dataclass(frozen=True, slots=True)
class VirtualExperiment:
    """Inputs of `run_virtual`.

    Args:
        plan: arms and loads; its first scheme is `alone`.
        requests_at: maps a load to the requests that every scheme serves.
        slo: serving's targets.
        device: cost model.
    """

    plan: RunPlan
    requests_at: Callable[[float], Sequence[Request]]
    slo: SLO
    device: DeviceModel


def run_virtual(
    experiment: VirtualExperiment, logs: Path, on_progress: Callable[[str], None]
) -> RunRecord:
    """Simulate every scheme at every load; an interrupt ends the run early without an error.

    Args:
        experiment: inputs.
        logs: folder for certificate logs.
        on_progress: gets the name of each part of the run at its start.

    Raises:
        InvalidArgument: the trace is too short for a load.
    """
    slices: list[Slice] = []
    audits: list[Audit] = []
    is_complete = False
    try:
        for load in experiment.plan.loads:
            on_progress(f"load {load:g}: searching for the request rate")
            requests = experiment.requests_at(load)
            for scheme in experiment.plan.schemes:
                on_progress(f"load {load:g}: {scheme.name}")
                log = logs / f"{scheme.name}-{load:g}.log"
                outcome = _simulate(experiment, requests, scheme, log)
                slices.append(_slice(outcome, experiment.device, scheme, load))
                audits += _audits(outcome, scheme, load)
        is_complete = True
    except KeyboardInterrupt:
        on_progress("interrupted: reporting the arms simulated so far")
    device = {f"device {name}": value for name, value in asdict(experiment.device).items()}
    plan = experiment.plan
    return RunRecord(
        plan=replace(plan, settings={**plan.settings, **device}),
        is_virtual=True,
        slices=tuple(slices),
        solo=(_solo(experiment.device),),
        audits=tuple(audits),
        slice_counts=SliceCounts(judged=len(slices), void=0, repeated=0),
        slo=experiment.slo,
        slo_from="flags",
        complete=is_complete,
    )


def _simulate(
    experiment: VirtualExperiment, requests: Sequence[Request], scheme: Scheme, log: Path
) -> ArmOutcome:
    return simulate(
        requests,
        experiment.device,
        ABLATED if scheme.without else scheme.name,
        slo=experiment.slo,
        policy=replace(default_policy(experiment.device), without=scheme.without),
        seed=experiment.plan.seed,
        log_path="" if scheme.slowdown is None else str(log),
    )


def piece_of(trace: Trace, rate_rps: float, *, seconds: float, seed: int) -> list[Request]:
    """Return a piece of the trace at this rate, from a random start.

    Raises:
        InvalidArgument: the trace is too short.
    """
    trace = trace.rescaled(rate_rps=rate_rps)
    if trace.duration_s < seconds:
        raise InvalidArgument(
            f"trace {trace.name} covers {trace.duration_s:.0f} s at {rate_rps:.2f} requests/s, "
            f"less than {seconds:g} s: lower --seconds or --load"
        )
    random = np.random.default_rng(seed)
    start_s = random.uniform(0.0, trace.duration_s - seconds)
    piece = trace.window(start_s, seconds)
    return [
        Request(arrival_ms=float(at) * MS_PER_S, prompt_tokens=int(prompt), output_tokens=int(out))
        for at, prompt, out in zip(
            piece.arrival_s, piece.prompt_tokens, piece.output_tokens, strict=True
        )
    ]


def _tokens(device: DeviceModel, harvest_ms: float) -> int:
    """Return the tokens of `harvest_ms` of rollout work; a step generates `batch_max` tokens."""
    return round(harvest_ms / (device.layers * device.layer_ms) * device.batch_max)


def _solo(device: DeviceModel) -> Slice:
    alone_ms = _SOLO_STEPS * device.layers * device.layer_ms
    return Slice(
        arm=SHARE_ALL,
        round=-1,
        start_s=0.0,
        end_s=alone_ms / MS_PER_S,
        requests=(),
        serving_busy_s=0.0,
        rollout_tokens=_tokens(device, alone_ms),
    )


def _slice(outcome: ArmOutcome, device: DeviceModel, scheme: Scheme, load: float) -> Slice:
    return Slice(
        arm=scheme.name,
        load=load,
        round=0,
        start_s=0.0,
        end_s=outcome.wall_ms / MS_PER_S,
        rollout_tokens=_tokens(device, outcome.harvest_ms),
        serving_busy_s=outcome.serving_busy_ms / MS_PER_S,
        requests=tuple(
            Answered(
                arrival_s=0.0,  # In virtual time, order alone identifies a request.
                ttft_ms=one.ttft_ms,
                tpot_ms=one.mean_tpot_ms if one.output_tokens > 1 else None,
                output_tokens=one.output_tokens,
                late_gaps=one.late_gaps,
            )
            for one in outcome.requests
        ),
    )


def _audits(outcome: ArmOutcome, scheme: Scheme, load: float) -> list[Audit]:
    verified, violations = outcome.certificates_verified, outcome.violations
    if verified is None or violations is None:
        return []
    granted = verified + len(violations)
    return [Audit(scheme.name, granted, verified, len(violations), load)]
