"""The tensors a model has, kept while a loader runs that may put others in their place."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from rose.engines.shards.storages import look_of, storage_of


class _Slot(NamedTuple):
    tensor: torch.Tensor
    kept: torch.Tensor  # the same elements, which an assignment to `tensor.data` does not change


class Slots:
    """Remembers every parameter and buffer of a model: the objects, and what they look at.

    An operation on a tensor can be seen by who dispatches it; `module.weight = other` and
    `parameter.data = other` are none.

    Args:
        model: not copied.
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
        """Return each tensor that another took the place of, as it was, and the other."""
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
        """Put back every object, and let it look at what it looked at."""
        for owner, before in self._owners:
            owner.clear()
            owner.update(before)
        for slot in self._slots:
            if not _is_same(slot.tensor, slot.kept):
                slot.tensor.data = slot.kept


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return storage_of(one) == storage_of(other) and look_of(one) == look_of(other)
