"""Storages of tensors: their identity, and the place of a tensor in its storage."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from rose.engines.shards.look import Look
from rose.errors import InvalidArgument


def storage_of(tensor: torch.Tensor) -> int:
    """Return an id that all views of one storage share, on any device.

    The id is an address, so it has no meaning after the storage was freed.
    """
    return int(tensor.untyped_storage()._cdata)


def look_of(tensor: torch.Tensor) -> Look:
    """Return the view that a tensor has of its storage."""
    return Look(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))


def dtype_of(tensor: torch.Tensor) -> str:
    """Return the dtype's name in shard maps."""
    return str(tensor.dtype).removeprefix("torch.")


def elements_of(tensor: torch.Tensor) -> int:
    """Return how many elements of the tensor's dtype fit in its storage."""
    return int(tensor.untyped_storage().nbytes()) // int(tensor.element_size())


def parameters_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a model: each storage once, by its first name.

    Raises:
        InvalidArgument: a tensor is not plain, such as a DTensor or a quantised wrapper.
    """
    first: dict[int, str] = {}
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in _tensors_of(model):
        if is_traceable_wrapper_subclass(tensor):
            raise InvalidArgument(
                f"{name} is a {type(tensor).__name__}, which keeps its elements in other tensors: "
                "pass a model with plain tensors"
            )
        if first.setdefault(storage_of(tensor), name) == name:
            kept[name] = tensor
    return kept


def storages_of(parameters: Mapping[str, torch.Tensor], *, rank: int) -> dict[tuple[int, str], int]:
    """Return the number of elements of each parameter's storage, by rank and name."""
    return {(rank, name): elements_of(tensor) for name, tensor in parameters.items()}


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments or results of an operation, also in lists."""
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


def written_by(operation: Any, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the arguments that an operation of the dispatcher changes in place."""
    written: list[torch.Tensor] = []
    for at, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        written += tensors_in(value)
    return written


def is_view(operation: Any) -> bool:
    """Return True if an operation returns a view of an argument, and changes nothing."""
    returned = [one.alias_info for one in operation._schema.returns]
    return any(one is not None and not one.is_write for one in returned)
