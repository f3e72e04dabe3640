"""The weights of a trainer's model: whole, in bf16, under the names of its checkpoint."""

import re
import sys
from collections.abc import Iterator
from typing import Any, Final

from rose.errors import InvalidArgument

# PEFT's wrapper of a module that is trained beside the adapter, and the adapter's name.
_SAVED: Final = re.compile(r"\.modules_to_save\.([^.]+)")
_ZERO3, _FSDP1 = 3, 1


def trl_weights(model: Any) -> dict[str, Any]:
    """Return a model's weights by name in host memory, in bf16, the dtype of rose's workers.

    An adapter of PEFT is merged into the weights that are returned; the model stays as it is.

    Raises:
        InvalidArgument: the model is quantized, or PEFT cannot merge its adapter.
    """
    return gathered(model, is_kept=True)


def gathered(model: Any, *, is_kept: bool) -> dict[str, Any]:
    """Return whole weights. If a model is in shards, all ranks must call this together.

    Args:
        model: model of this rank; its parameters may be DTensors, as under FSDP2.
        is_kept: whether this rank needs the weights; otherwise it only gives its shards.
    """
    found: dict[str, Any] = {}
    for name, tensor in _merged(model):
        if hasattr(tensor, "full_tensor"):
            tensor = tensor.detach().full_tensor()  # noqa: PLW2901 (frees what it gathered)
        if is_kept:
            found[name] = host_bf16(tensor)
    return found


def host_bf16(tensor: Any) -> Any:
    """Return a tensor in bf16 in host memory.

    The trainer moves its model to its device after `rose.publish` was called, and all versions must
    be on one device.
    """
    return tensor.detach().bfloat16().cpu()


def check_sharding(accelerator: Any) -> None:
    """Refuse shards that are no DTensors.

    Raises:
        InvalidArgument: the trainer shards its model by ZeRO-3 or FSDP1.
    """
    state = accelerator.state
    zero, fsdp = getattr(state, "deepspeed_plugin", None), getattr(state, "fsdp_plugin", None)
    if zero is not None and zero.zero_stage == _ZERO3:
        raise InvalidArgument("the weights of ZeRO-3 cannot be gathered here: use FSDP2 or ZeRO-2")
    if fsdp is not None and fsdp.fsdp_version == _FSDP1:
        raise InvalidArgument("the weights of FSDP1 cannot be gathered here: set fsdp_version to 2")


def is_sharded(model: Any) -> bool:
    """Return whether ranks must gather the model's weights together."""
    return any(hasattr(tensor, "full_tensor") for _, tensor in model.named_parameters())


def _merged(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield parameters; those of a PEFT model as its base model would have them."""
    peft = sys.modules.get("peft")  # a model of PEFT exists only if somebody has imported it
    if peft is None or not isinstance(model, peft.PeftModel):
        for name, tensor in model.named_parameters():
            yield name, tensor
        return
    if not hasattr(model.base_model, "merge_adapter"):
        kind = model.peft_config[model.active_adapter].peft_type
        raise InvalidArgument(f"an adapter of type {kind.value} cannot be merged into the weights")
    if is_sharded(model):
        raise InvalidArgument("an adapter of a model in shards cannot be merged: use DDP")
    layers = {name: one for name, one in model.named_modules() if _is_adapted(one)}
    for name, layer in layers.items():
        for parameter, tensor in _layer(layer, name):
            yield f"{_plain(name)}.{parameter}", tensor
    inside = tuple(f"{name}." for name in layers)
    for name, tensor in model.named_parameters():
        saved = _SAVED.search(name)
        is_other = saved is not None and saved[1] not in model.active_adapters
        if not name.startswith(inside) and ".original_module." not in name and not is_other:
            yield _plain(_SAVED.sub("", name)), tensor


def _is_adapted(module: Any) -> bool:
    return hasattr(module, "base_layer") and hasattr(module, "unmerge")


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.")


def _layer(layer: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a layer's parameters with its adapter merged. The layer has its old bits afterwards.

    To merge an adapter and to subtract it again rounds twice, so the old weights are kept.
    """
    base = layer.base_layer
    if hasattr(base, "base_layer"):
        raise InvalidArgument(f"{name} has several adapters inside each other: use one")
    kept = {part: tensor.detach().clone() for part, tensor in base.named_parameters()}
    for part, tensor in kept.items():
        if not tensor.is_floating_point():
            raise InvalidArgument(
                f"an adapter of quantized weights cannot be merged: {name}.{part} has the dtype "
                f"{tensor.dtype}"
            )
    layer.merge()
    try:
        merged = {part: tensor.detach().clone() for part, tensor in base.named_parameters()}
    finally:
        layer.unmerge()
        for part, tensor in base.named_parameters():
            tensor.data.copy_(kept[part])
    yield from merged.items()
