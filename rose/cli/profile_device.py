"""The model of a device that a trace is served on: the standard one, a table's, or a fitted one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rose._core import LatencyModel
from rose.errors import InvalidArgument
from rose.executor.model_cost import model_cost
from rose.memory.model_shape import KVDtype
from rose.memory.presets import find_model
from rose.sim import DeviceModel
from rose.slo import Policy
from rose.slo.latency_file import load_latency_model
from rose.slo.prior import find_roofline, known_devices

_NOISE: Final = 0.1
_BF16: Final = KVDtype(2)
# Of the model that `DeviceModel` stands for: 32 layers of K and V of 8 heads of 128, bf16.
_STANDARD_TOKEN_BYTES: Final = 128 << 10


@dataclass(frozen=True, slots=True)
class Modelled:
    """A device that serves.

    Args:
        name: for the report.
        device: what things cost.
        token_bytes: of KV.
    """

    name: str
    device: DeviceModel
    token_bytes: int


def device_of(
    *, model: str | None, gpu: str | None, latency: Path | None, noise: float | None
) -> Modelled:
    """Return the device.

    Args:
        model: that serves; None for the 8B of `DeviceModel`.
        gpu: of the table of rooflines; needs the model. None for the H200 of `DeviceModel`.
        latency: file of a fitted latency model; None for none.
        noise: standard deviation of the logarithm of a step's time.

    Raises:
        InvalidArgument: a model, a GPU or a file is not known, or two say the same.
        CorruptData: the file is damaged.
    """
    noise = _NOISE if noise is None else noise
    token_bytes = _STANDARD_TOKEN_BYTES
    if model is not None:
        cost = model_cost(find_model(model), kv=_BF16)
        token_bytes = round(cost.context_token_bytes)
    if latency is not None:
        if gpu is not None:
            raise InvalidArgument("--latency and --gpu both say how long steps take; give one")
        return Modelled(str(latency), fitted_device(_loaded(latency), noise=noise), token_bytes)
    if gpu is None:
        if model is not None:
            raise InvalidArgument("--model of a trace needs --gpu, or --latency: whose steps?")
        return Modelled("an 8B model on an H200", DeviceModel(noise=noise), token_bytes)
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
    return Modelled(f"{model} on {roofline.device}", device, token_bytes)


def fitted_device(model: LatencyModel, *, noise: float) -> DeviceModel:
    """Return the device whose steps take what a fitted model predicts, which is a sum of terms."""

    def step_ms(sequences: float, context: float, prefill: float) -> float:
        forecast = model.forecast(
            decode_sequences=sequences, context_tokens=context, prefill_tokens=prefill
        )
        return float(forecast.predicted_ms)

    # One of each is too small beside the base to be told from rounding.
    many = 4096.0
    base_ms = step_ms(0, 0, 0)
    prefill_ms = (step_ms(0, 0, many) - base_ms) / many
    context_ms = (step_ms(0, many, 0) - base_ms) / many
    both_ms = step_ms(0, many, many) - base_ms - many * (prefill_ms + context_ms)
    return DeviceModel(
        base_ms=base_ms,
        sequence_ms=max(0.0, (step_ms(many, 0, 0) - base_ms) / many),
        context_ms=max(0.0, context_ms),
        prefill_ms=max(0.0, prefill_ms),
        pair_ms=max(0.0, both_ms / many**2),
        noise=noise,
    )


def _loaded(path: Path) -> LatencyModel:
    model = load_latency_model(path, Policy())
    if model is None:
        raise InvalidArgument(f"there is no file {path}; --latency names one that rose has saved")
    return model


def _devices() -> str:
    return ", ".join(name for name in known_devices() if name != "CPU")
