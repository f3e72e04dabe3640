"""Measure a trace: serve it on a model of a device, alone and with rollouts beside it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.cli.profile_report import Compute, Measured, ProfileAsked
from rose.demo.progress import Phases
from rose.errors import InvalidArgument
from rose.executor.model_cost import model_cost
from rose.memory.model_shape import KVDtype
from rose.memory.presets import find_model
from rose.scheduler.broker import Observation, ServingDevice
from rose.scheduler.broker.engine_reader import WINDOW_MS
from rose.sim import (
    ArmOutcome,
    DeviceModel,
    Request,
    at_load,
    excess_late_share,
    missed,
    simulate,
    stretched,
)
from rose.sim.outcome import price
from rose.slo import SLO
from rose.slo.prior import find_roofline, known_devices
from rose.traces import Trace, read_trace
from rose.units import GIB, MS_PER_S, NS_PER_MS

_NOISE: Final = 0.1
TRACE_KV_GIB: Final = 90.0
_BF16: Final = KVDtype(2)
# Of the model that `DeviceModel` stands for: 32 layers of K and V of 8 heads of 128, bf16.
_STANDARD_TOKEN_BYTES: Final = 128 << 10


@dataclass(frozen=True, slots=True)
class _Modelled:
    """A device that serves.

    Args:
        name: for the report.
        device: what things cost.
        token_bytes: of KV.
    """

    name: str
    device: DeviceModel
    token_bytes: int


def device_of(*, model: str | None, gpu: str | None, noise: float | None) -> _Modelled:
    """Return the device.

    Args:
        model: that serves; None for the 8B of `DeviceModel`.
        gpu: of the table of rooflines; needs the model. None for the H200 of `DeviceModel`.
        noise: standard deviation of the logarithm of a step's time.

    Raises:
        InvalidArgument: a model or a GPU is not known, or one is given without the other.
    """
    noise = _NOISE if noise is None else noise
    token_bytes = _STANDARD_TOKEN_BYTES
    if model is not None:
        cost = model_cost(find_model(model), kv=_BF16)
        token_bytes = round(cost.context_token_bytes)
    if gpu is None:
        if model is not None:
            raise InvalidArgument("--model of a trace needs --gpu: whose steps?")
        return _Modelled("an 8B model on an H200", DeviceModel(noise=noise), token_bytes)
    if model is None:
        raise InvalidArgument("--gpu needs --model: how long steps take is up to both")
    roofline = find_roofline(gpu)
    if roofline.notice is not None:
        raise InvalidArgument(f"no figures for --gpu {gpu}; give one of {_devices()}")
    base, sequence, context, prefill, pair = roofline.prior_ms(cost)
    device = DeviceModel(
        base_ms=base,
        sequence_ms=sequence,
        context_ms=context,
        prefill_ms=prefill,
        pair_ms=pair,
        noise=noise,
    )
    return _Modelled(f"{model} on {roofline.device}", device, token_bytes)


def _devices() -> str:
    return ", ".join(name for name in known_devices() if name != "CPU")


_Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class StepEnds:
    """Observes the simulator: when steps of serving ended."""

    ends_ms: list[float] = field(default_factory=list)

    def __call__(self, now_ns: int, what: str, number: int) -> None:
        """Note the end of a step."""
        del number
        if what == "step_end":
            self.ends_ms.append(now_ns / NS_PER_MS)


class ServedRequests:
    """Who was in the engine when, and what they held; a column for each request.

    A request holds its prompt from the moment it arrives: that is a little more than an engine
    gives it, for it waits without KV. From its first token to its last it grows evenly.
    """

    def __init__(self, requests: Sequence[Request], outcome: ArmOutcome, steps: StepEnds) -> None:
        """Keep an outcome of serving alone, and when its steps ended."""
        served = outcome.requests
        self.arrived_ms = np.array([one.arrival_ms for one in requests])
        self.ttft_ms = np.array([one.ttft_ms for one in served])
        self.first_ms = self.arrived_ms + self.ttft_ms
        said_ms = [one.mean_tpot_ms * (one.output_tokens - 1) for one in served]
        self.end_ms = self.first_ms + np.array(said_ms)
        self._prompt = np.array([one.prompt_tokens for one in requests], dtype=np.float64)
        self._output = np.array([one.output_tokens for one in served], dtype=np.float64)
        self._steps_ms: _Floats = np.array(steps.ends_ms)
        self._by_first = np.argsort(self.first_ms, kind="stable")

    def observation(
        self, at_ms: float, device: ServingDevice, *, token_bytes: int, batch_max: int
    ) -> Observation:
        """Return how serving was at a moment.

        Args:
            at_ms: the moment.
            device: that serves.
            token_bytes: of KV.
            batch_max: requests that run at once.
        """
        is_in = (self.arrived_ms <= at_ms) & (at_ms < self.end_ms)
        has_token = is_in & (self.first_ms <= at_ms)
        held = self._prompt[is_in].sum() + self._said(has_token, at_ms)
        running = int(has_token.sum())
        prefilling = int(is_in.sum()) - running
        # One prompt at a time is prefilled, if there is room for it.
        begun = min(prefilling, 1) if running < batch_max else 0
        return Observation(
            device=device,
            at_ms=at_ms,
            kv_used=min(1.0, float(held) * token_bytes / device.kv_bytes),
            running=running + begun,
            waiting=prefilling - begun,
            ttft_ms_p99=_p99(self._first_tokens(at_ms)),
            tpot_ms_p99=_p99(*self._gaps(at_ms)),
        )

    def _said(self, has_token: npt.NDArray[np.bool_], at_ms: float) -> float:
        first_ms, end_ms = self.first_ms[has_token], self.end_ms[has_token]
        part = (at_ms - first_ms) / np.maximum(end_ms - first_ms, 1e-9)
        return float((1 + part * (self._output[has_token] - 1)).sum())

    def _first_tokens(self, at_ms: float) -> _Floats:
        ordered = self.first_ms[self._by_first]
        low, high = np.searchsorted(ordered, [at_ms - WINDOW_MS, at_ms], side="right")
        found: _Floats = self.ttft_ms[self._by_first[low:high]]
        return found

    def _gaps(self, at_ms: float) -> tuple[_Floats, _Floats]:
        """Return the gaps between steps of the window, and the requests that waited through each.

        Every request that decodes gets a token at the end of every step.
        """
        low, high = np.searchsorted(self._steps_ms, [at_ms - WINDOW_MS, at_ms], side="right")
        ends = self._steps_ms[max(low - 1, 0) : high]
        if ends.size < 2:
            return np.empty(0), np.empty(0)
        began, ended = ends[:-1], ends[1:]
        had = np.searchsorted(np.sort(self.first_ms), began + 1e-6, side="right")
        gone = np.searchsorted(np.sort(self.end_ms), began + 1e-6, side="right")
        waited: _Floats = (had - gone).astype(np.float64)
        return ended - began, np.maximum(waited, 0)


def _p99(values: _Floats, weights: _Floats | None = None) -> float | None:
    """Return the 99 % quantile of values that count `weights` times; None without any."""
    counts = np.ones(values.size) if weights is None else weights
    total = float(counts.sum())
    if not total:
        return None
    order = np.argsort(values, kind="stable")
    at = int(np.searchsorted(np.cumsum(counts[order]), 0.99 * total - 1e-9))
    return float(values[order][min(at, values.size - 1)])


_HOW: Final = (
    "Compute is what rollouts got in virtual time with every quantum certified (no limit of the "
    "slowdown), on a model of a device; it is only as good as that model."
)
_REQUESTS_MIN: Final = 2


def measure_trace(asked: ProfileAsked, shown: Phases) -> Measured:
    """Serve the trace under each pair of targets; an interrupt keeps those that are done.

    Raises:
        InvalidArgument: an option makes no sense, or too few requests are in the piece.
        KeyboardInterrupt: before there was anything to report.
    """
    if asked.load is not None and not 0 < asked.load < 1:
        raise InvalidArgument(
            f"a load of {asked.load:g} is not possible: give more than 0, less than 1"
        )
    modelled = device_of(model=asked.model, gpu=asked.gpu, noise=asked.noise)
    kv_bytes = int(TRACE_KV_GIB * GIB) if asked.kv_bytes is None else asked.kv_bytes
    pool, device, wanted = asked.pool(kv_bytes), modelled.device, 1 + len(asked.slos)
    trace = read_trace(asked.source, seed=asked.seed)
    requests = _requests(trace, asked.seconds)
    shown.advance("serving alone", done=0, wanted=wanted)
    if asked.load is not None:
        requests = at_load(stretched(requests), device, busy=asked.load, seed=asked.seed)
    steps = StepEnds()
    alone = simulate(requests, device, "alone", slo=asked.slos[0], seed=asked.seed, observer=steps)
    computes: list[Compute] = []
    try:
        for number, slo in enumerate(asked.slos, 1):
            name = f"targets of {slo.ttft_ms:g} and {slo.tpot_ms:g} ms"
            shown.advance(name, done=number, wanted=wanted)
            computes.append(_compute(requests, device, slo, asked.seed))
        is_complete = True
    except KeyboardInterrupt:
        is_complete = False
    served, every_ms = ServedRequests(requests, alone, steps), asked.every_s * MS_PER_S
    on = pool.device(asked.slos[0])
    return Measured(
        source=trace.name,
        kind="trace",
        how=_HOW,
        pool=pool,
        observations=tuple(
            served.observation(
                number * every_ms,
                on,
                token_bytes=modelled.token_bytes,
                batch_max=device.batch_max,
            )
            for number in range(int(alone.wall_ms // every_ms) + 1)
        ),
        compute=tuple(computes),
        slos=asked.slos[: len(computes)],
        every_ms=every_ms,
        failures=(),
        settings={
            "requests": len(requests),
            "seconds": asked.seconds,
            "every_s": asked.every_s,
            "load": asked.load,
            "busy_alone": alone.busy,
            "device": modelled.name,
            "token_bytes": modelled.token_bytes,
            "seed": asked.seed,
            **{f"device {name}": value for name, value in asdict(device).items()},
        },
        is_complete=is_complete,
    )


def _requests(trace: Trace, seconds: float) -> list[Request]:
    piece = trace.window(0.0, seconds) if trace.duration_s > seconds else trace
    if len(piece) < _REQUESTS_MIN:
        raise InvalidArgument(
            f"trace {trace.name} has {len(piece)} requests in its first {seconds:g} s; give "
            f"a longer piece with --seconds"
        )
    columns = (piece.arrival_s, piece.prompt_tokens, piece.output_tokens)
    return [
        Request(arrival_ms=float(at) * MS_PER_S, prompt_tokens=int(prompt), output_tokens=int(out))
        for at, prompt, out in zip(*columns, strict=True)
    ]


def _compute(requests: list[Request], device: DeviceModel, slo: SLO, seed: int) -> Compute:
    # What is late under these targets is counted while the trace is served, so alone serves again.
    alone = simulate(requests, device, "alone", slo=slo, seed=seed)
    shared = simulate(requests, device, "rose_slack", slo=slo, seed=seed)
    return Compute(
        share=shared.harvest,
        met_alone=1 - len(missed(alone, slo=slo)) / len(requests),
        excess_late_share=excess_late_share(shared, alone, slo=slo),
        price=price(shared.quantile, alone.quantile),
    )
