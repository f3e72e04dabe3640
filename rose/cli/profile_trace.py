"""Measure a trace: serve it on a model of a device, alone and with rollouts beside it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from rose.cli.profile_measured import Compute, Measured, Pool
from rose.cli.profile_serving import ServedRequests, StepTimes
from rose.errors import InvalidArgument
from rose.scheduler.broker import Observation
from rose.sim import (
    ArmOutcome,
    DeviceModel,
    Request,
    at_load,
    excess_late_share,
    missed,
    simulate,
)
from rose.slo import SLO
from rose.traces import Trace
from rose.units import MS_PER_S

HOW: Final = (
    "Compute is what rollouts got in virtual time with every quantum certified (mode slack), on a "
    "model of a device; it is only as good as that model."
)
_REQUESTS_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class TraceAsked:
    """What is to be measured.

    Args:
        trace: its first `seconds` are served.
        seconds: how long.
        every_s: between two readings.
        load: share of the time in which serving alone is busy; None for the rate of the trace.
        slos: that are asked about.
        device: what things cost.
        device_name: for the report.
        token_bytes: of KV.
        pool: of the device.
        seed: of the noise.
    """

    trace: Trace
    seconds: float
    every_s: float
    load: float | None
    slos: tuple[SLO, ...]
    device: DeviceModel
    device_name: str
    token_bytes: int
    pool: Pool
    seed: int


def measure_trace(asked: TraceAsked, *, advance: Callable[[float, str], None]) -> Measured:
    """Serve the trace under each pair of targets; an interrupt keeps those that are done.

    Args:
        asked: what.
        advance: is told the parts that are done, and what comes next.

    Raises:
        InvalidArgument: too few requests in the piece.
        KeyboardInterrupt: before there was anything to report.
    """
    requests = _requests(asked)
    advance(0, "serving alone")
    if asked.load is not None:
        requests = at_load(requests, asked.device, busy=asked.load, seed=asked.seed)
    steps = StepTimes()
    alone = simulate(
        requests, asked.device, "alone", slo=asked.slos[0], seed=asked.seed, observer=steps
    )
    computes: list[Compute] = []
    try:
        for number, slo in enumerate(asked.slos):
            advance(number + 1, f"targets of {slo.ttft_ms:g} and {slo.tpot_ms:g} ms")
            computes.append(_compute(asked, requests, slo))
        is_complete = True
    except KeyboardInterrupt:
        is_complete = False
    return Measured(
        source=asked.trace.name,
        kind="trace",
        how=HOW,
        pool=asked.pool,
        observations=_observations(asked, requests, alone, steps),
        compute=tuple(computes),
        slos=asked.slos[: len(computes)],
        every_ms=asked.every_s * MS_PER_S,
        failures=(),
        settings={
            "requests": len(requests),
            "seconds": asked.seconds,
            "every_s": asked.every_s,
            "load": asked.load,
            "busy_alone": alone.busy,
            "device": asked.device_name,
            "token_bytes": asked.token_bytes,
            "seed": asked.seed,
            **{f"device {name}": value for name, value in asdict(asked.device).items()},
        },
        is_complete=is_complete,
    )


def _requests(asked: TraceAsked) -> list[Request]:
    trace = asked.trace
    piece = trace.window(0.0, asked.seconds) if trace.duration_s > asked.seconds else trace
    if len(piece) < _REQUESTS_MIN:
        raise InvalidArgument(
            f"trace {trace.name} has {len(piece)} requests in its first {asked.seconds:g} s; give "
            f"a longer piece with --seconds"
        )
    columns = (piece.arrival_s, piece.prompt_tokens, piece.output_tokens)
    return [
        Request(arrival_ms=float(at) * MS_PER_S, prompt_tokens=int(prompt), output_tokens=int(out))
        for at, prompt, out in zip(*columns, strict=True)
    ]


def _compute(asked: TraceAsked, requests: list[Request], slo: SLO) -> Compute:
    # What is late under these targets is counted while the trace is served, so alone serves again.
    alone = simulate(requests, asked.device, "alone", slo=slo, seed=asked.seed)
    shared = simulate(requests, asked.device, "rose_slack", slo=slo, seed=asked.seed)
    return Compute(
        share=shared.harvest,
        met_alone=1 - len(missed(alone, slo=slo)) / len(requests),
        excess_late_share=excess_late_share(shared, alone, slo=slo),
    )


def _observations(
    asked: TraceAsked, requests: list[Request], alone: ArmOutcome, steps: StepTimes
) -> tuple[Observation, ...]:
    served = ServedRequests(requests, alone, steps)
    device = asked.pool.device(asked.slos[0])
    every_ms = asked.every_s * MS_PER_S
    return tuple(
        served.observation(
            number * every_ms,
            device,
            token_bytes=asked.token_bytes,
            batch_max=asked.device.batch_max,
        )
        for number in range(int(alone.wall_ms // every_ms) + 1)
    )
