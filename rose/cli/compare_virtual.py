"""A comparison in virtual time: the real decisions, on a device that is a model."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from rose.cli.compare_record import Audit
from rose.cli.compare_run import Asked, Listener, check_covers
from rose.cli.compare_schemes import ABLATED, ALONE, CONTROL, SCHEMES, Kind, Scheme
from rose.demo.record import Answered, Slice
from rose.sim.device import DeviceModel
from rose.sim.outcome import ArmOutcome
from rose.sim.request import Request
from rose.sim.simulation import default_policy, simulate
from rose.units import MS_PER_S

# A busy share that is as close as this to what was asked for is taken.
_LOAD_TOLERANCE: Final = 0.004
_TRIES: Final = 16
_CERTIFYING: Final = (Kind.ROSE, Kind.ABLATION)


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """Simulates every scheme.

    Args:
        noise: standard deviation of the logarithm of a step's time.
    """

    noise: float

    @property
    def possible(self) -> frozenset[str]:
        """All but the control: nothing here is noisy, so nothing is run twice."""
        return frozenset(SCHEMES) - {CONTROL}

    @property
    def left_out(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    @property
    def prompt_tokens_max(self) -> None:
        """Any."""

    @property
    def output_tokens_max(self) -> None:
        """Any."""

    @property
    def settings(self) -> dict[str, object]:
        """The device."""
        return {f"device {name}": value for name, value in asdict(self._device()).items()}

    def _device(self) -> DeviceModel:
        return DeviceModel(noise=self.noise)

    def run(self, asked: Asked, listener: Listener) -> None:
        """Simulate every scheme at every load.

        Raises:
            InvalidArgument: the trace is too short for a load.
        """
        self._device()
        for load in asked.loads:
            listener.say(f"load {load:g}: looking for the rate")
            requests, alone = self._at_load(asked, load)
            for scheme in asked.schemes:
                listener.say(f"load {load:g}: {scheme.label}")
                outcome = (
                    alone
                    if scheme.name == ALONE
                    else self._simulate(asked, requests, scheme, listener.logs)
                )
                listener.window(_window(outcome, scheme, load))
                audit = _audit(outcome, scheme, load)
                if audit is not None:
                    listener.audit(audit)

    def _simulate(
        self, asked: Asked, requests: Sequence[Request], scheme: Scheme, logs: Path
    ) -> ArmOutcome:
        device = self._device()
        log = logs / f"{scheme.name}-{len(requests)}.log"
        return simulate(
            requests,
            device,
            ABLATED if scheme.ablates else scheme.name,
            slo=asked.slo,
            policy=replace(default_policy(device), without=scheme.ablates),
            seed=asked.seed,
            log_path=str(log) if scheme.kind in _CERTIFYING else "",
        )

    def _at_load(self, asked: Asked, load: float) -> tuple[list[Request], ArmOutcome]:
        """Find the rate at which serving alone is busy for `load` of the time, by bisection.

        Busy time is not proportional to the rate: requests that come together share steps.
        """
        slower_rps, faster_rps = 0.0, None
        rate_rps = asked.trace.mean_rate_rps
        tried: list[tuple[list[Request], ArmOutcome]] = []
        for _ in range(_TRIES):
            requests = requests_at(asked, rate_rps)
            alone = self._simulate(asked, requests, SCHEMES[ALONE], Path())
            tried.append((requests, alone))
            if abs(alone.busy - load) <= _LOAD_TOLERANCE:
                break
            if alone.busy < load:
                slower_rps = rate_rps
                rate_rps = 2 * rate_rps if faster_rps is None else (rate_rps + faster_rps) / 2
            else:
                faster_rps = rate_rps
                rate_rps = (slower_rps + rate_rps) / 2
        return min(tried, key=lambda one: abs(one[1].busy - load))


def requests_at(asked: Asked, rate_rps: float) -> list[Request]:
    """Return a piece of the trace at this rate, from a seeded start that leaves room for it.

    Raises:
        InvalidArgument: the trace is too short.
    """
    trace = asked.trace.rescaled(rate_rps=rate_rps)
    check_covers(trace, asked.seconds)
    start_s = float(np.random.default_rng(asked.seed).random()) * (trace.duration_s - asked.seconds)
    piece = trace.window(start_s, asked.seconds)
    return [
        Request(arrival_ms=float(at) * MS_PER_S, prompt_tokens=int(prompt), output_tokens=int(out))
        for at, prompt, out in zip(
            piece.arrival_s, piece.prompt_tokens, piece.output_tokens, strict=True
        )
    ]


def _window(outcome: ArmOutcome, scheme: Scheme, load: float) -> Slice:
    return Slice(
        arm=scheme.name,
        load=load,
        round=0,
        start_s=0.0,
        end_s=outcome.wall_ms / MS_PER_S,
        rollout_tokens=0,
        serving_busy_s=outcome.serving_busy_ms / MS_PER_S,
        harvest=outcome.harvest,
        requests=tuple(
            Answered(
                arrival_s=0.0,  # In virtual time requests are told apart by their order alone.
                ttft_ms=one.ttft_ms,
                tpot_ms=one.mean_tpot_ms if one.output_tokens > 1 else None,
                longest_gap_ms=one.longest_gap_ms if one.output_tokens > 1 else None,
                late_gaps=one.late_gaps,
                output_tokens=one.output_tokens,
            )
            for one in outcome.requests
        ),
        blocked_ms=tuple(wait for wait in outcome.blocked_ms if wait > 0),
        pauses=len(outcome.pauses_ms),
        pauses_ms=outcome.pauses_ms,
        segments=outcome.segments,
    )


def _audit(outcome: ArmOutcome, scheme: Scheme, load: float) -> Audit | None:
    verified, violations = outcome.certificates_verified, outcome.violations
    if verified is None or violations is None:
        return None
    return Audit(
        scheme=scheme.name,
        load=load,
        granted=verified + len(violations),
        verified=verified,
        violations=len(violations),
    )
