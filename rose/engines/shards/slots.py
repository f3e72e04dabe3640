"""A record of a model's tensors, made before a loader runs, because the loader may replace them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from rose.engines.shards.storages import look_of, storage_of


class _Slot(NamedTuple):
    tensor: torch.Tensor
    kept: torch.Tensor  # a view that an assignment to `tensor.data` does not change


class Slots:
    """Records every parameter and buffer of a model: the objects, and their memory.

    Torch dispatches operations on tensors, but not the assignments `module.weight = other` and
    `parameter.data = other`. A comparison with the record finds these.

    Args:
        model: model whose tensors are recorded; they are not copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self._owners: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._slots: list[_Slot] = []
        for module in model.modules():
            for owner in (module._parameters, module._buffers):
                self._owners.append((owner, dict(owner)))
                tensors = [one for one in owner.values() if one is not None]
                self._slots += [_Slot(one, one.detach()) for one in tensors]

    def replaced(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each replaced tensor as it was, and its replacement."""
        kept_of = {id(slot.tensor): slot.kept for slot in self._slots}
        for owner, before in self._owners:
            for key, tensor in before.items():
                after = owner.get(key)
                if tensor is not None and after is not None and after is not tensor:
                    yield kept_of[id(tensor)], after
        for slot in self._slots:
            if not _is_same(slot.tensor, slot.kept):
                yield slot.kept, slot.tensor

    def restore(self) -> None:
        """Restore every object, and its memory."""
        for owner, before in self._owners:
            owner.clear()
            owner.update(before)
        for slot in self._slots:
            if not _is_same(slot.tensor, slot.kept):
                slot.tensor.data = slot.kept


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return storage_of(one) == storage_of(other) and look_of(one) == look_of(other)
