"""Read the KV layout, step cost and weight size of a model from its `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from rose.executor.model_cost import model_cost
from rose.memory import KVGeometry
from rose.memory.model_config import read_shape
from rose.memory.model_shape import KVDtype
from rose.memory.model_weights import weight_bytes
from rose.memory.presets import find_model
from rose.slo.prior import ModelCost

_BLOCK_TOKENS: Final = 16  # default of vLLM and SGLang on most devices


class ModelConfig(Protocol):
    """A config object of transformers."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of its `config.json`."""
        ...


Model: TypeAlias = "str | Path | Mapping[str, Any] | ModelConfig | KVGeometry"
"""A preset name, the path of a `config.json` or its folder, the fields of that file, a config of
transformers, or a KV layout alone."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of one engine.

    Args:
        geometry: KV layout of the engine's model.
        cost: work of a step; None if only the KV layout is known.
        weight_bytes: bytes of weights on this device; 0 if unknown.
    """

    geometry: KVGeometry
    cost: ModelCost | None = None
    weight_bytes: int = 0


def needs_of(model: Model) -> Needs:
    """Return the requirements of an engine that runs `model`.

    KV has the dtype of the weights. Sliding-window layers count as full-attention layers, so one
    block table serves all layers. Pass a `KVGeometry` for an engine that stores KV differently.

    Raises:
        InvalidArgument: the model is unknown.
    """
    if isinstance(model, KVGeometry):
        return Needs(model)
    if isinstance(model, str | Path):
        shape = find_model(str(model))
    else:
        fields = model if isinstance(model, Mapping) else model.to_dict()
        shape = read_shape(fields, name=str(fields.get("_name_or_path") or "the model"))
    kv = KVDtype(shape.dtype_bytes)
    geometry = KVGeometry(
        layers=shape.layers,
        block_tokens=_BLOCK_TOKENS,
        bytes_per_token=sum(
            group.geometry.bytes_per_token for group in shape.groups(block_tokens=1, kv=kv)
        ),
    )
    return Needs(geometry, model_cost(shape, kv=kv), weight_bytes(shape))
