"""Estimate step times before any measurement, from a device's roofline and a model's cost."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, Final

from rose.errors import InvalidArgument
from rose.units import MS_PER_S

PriorMs = tuple[float, float, float, float, float]

# The driver's name of a MIG slice contains this word and the name of the whole GPU.
_SLICE: Final = "mig"


@dataclass(frozen=True, slots=True)
class ModelCost:
    """The work that a model's steps cause on one device, with or without tensor parallelism.

    Args:
        weight_bytes: bytes of weights read per step.
        token_flops: FLOPs of the weight matrices per token.
        context_token_bytes: bytes of KV read per context token.
        pair_flops: FLOPs of attention per pair of a prefill token and a context token.
    """

    weight_bytes: float
    token_flops: float
    context_token_bytes: float
    pair_flops: float

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidArgument: a cost is not a finite number >= 0; the message names it.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgument(f"ModelCost({field.name}={value}) must be finite and >= 0")


@dataclass(frozen=True, slots=True)
class Roofline:
    """Attainable performance of a device.

    Args:
        device: name of the device in `priors.json`.
        flops_per_s: attainable rate of matrix products, below the peak.
        bytes_per_s: attainable memory bandwidth.
        launch_ms: time of an empty step.
        notice: message for the user if the device is a MIG slice or not in the table, else None.
        memory_bytes: memory size; 0 if unknown.
    """

    device: str
    flops_per_s: float
    bytes_per_s: float
    launch_ms: float
    notice: str | None = None
    memory_bytes: float = 0.0

    def prior_ms(self, model: ModelCost) -> PriorMs:
        """Return the five initial coefficients of `LatencyModel`.

        The sum of compute time and memory time is used, not their maximum. So without launch time
        an estimate is one to two times the roofline. Too high an estimate costs a few loans,
        but too low an estimate would make certificates false.
        """
        ms_per_flop = MS_PER_S / self.flops_per_s
        ms_per_byte = MS_PER_S / self.bytes_per_s
        token_ms = model.token_flops * ms_per_flop
        return (
            self.launch_ms + model.weight_bytes * ms_per_byte,
            token_ms,
            model.context_token_bytes * ms_per_byte,
            token_ms,
            model.pair_flops * ms_per_flop,
        )


def prior_ms(device_name: str, model: ModelCost) -> PriorMs:
    """Return the five coefficients of a step's time, in milliseconds.

    They are the time per step, per decoding sequence, per context token, per prefill token, and per
    pair of a prefill token and a context token.

    Args:
        device_name: the driver's name ("NVIDIA A100-SXM4-80GB"), "cpu", or the name of a CPU. A
            device that is not in `priors.json` is assumed to be as slow as the slowest GPU there.
        model: cost of one step.
    """
    return find_roofline(device_name).prior_ms(model)


def find_roofline(device_name: str) -> Roofline:
    """Return the roofline of the entry in `priors.json` that matches a device name best.

    MIG slices and unknown devices get the slowest value of all GPUs in each field, and a `notice`
    that tells the user so. The first measured steps replace these values.
    """
    words, table = _words(device_name), _table()
    fitting = [
        (len(name_words), entry)
        for entry in table
        for name_words in map(_words, entry["names"])
        if name_words <= words
    ]
    if not fitting or _SLICE in words:
        return _slowest_gpu(device_name, table)
    _, entry = max(fitting, key=lambda pair: pair[0])
    return _roofline(entry)


def _words(name: str) -> frozenset[str]:
    """Return a name's words: "GH200" is not "H200", and "A100-SXM4-80GB" is three words."""
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))


def _table() -> list[dict[str, Any]]:
    text = resources.files("rose.slo").joinpath("priors.json").read_text(encoding="utf-8")
    table: list[dict[str, Any]] = json.loads(text)
    return table


def _roofline(entry: dict[str, Any]) -> Roofline:
    def number(name: str) -> float:
        return float(entry[name]["value"])

    return Roofline(
        device=entry["device"],
        flops_per_s=number("bf16_flops_per_s") * number("flops_share"),
        bytes_per_s=number("memory_bytes_per_s") * number("bytes_share"),
        launch_ms=number("launch_ms"),
        memory_bytes=number("memory_bytes"),
    )


def _slowest_gpu(device_name: str, table: Sequence[dict[str, Any]]) -> Roofline:
    gpus = [_roofline(entry) for entry in table if entry["is_gpu"]]
    return Roofline(
        device="the slowest GPU known",
        flops_per_s=min(gpu.flops_per_s for gpu in gpus),
        bytes_per_s=min(gpu.bytes_per_s for gpu in gpus),
        launch_ms=max(gpu.launch_ms for gpu in gpus),
        notice=f"the device '{device_name}' is not in rose's table of devices: until steps are "
        f"measured, it is assumed to be as slow as the slowest GPU there",
    )
