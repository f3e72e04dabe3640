"""Saves bits before a piece of code overwrites them, so that they can be restored."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rose.engines.shards.look import Look
from rose.engines.shards.storages import (
    is_view,
    look_of,
    storage_of,
    tensors_in,
    written_by,
)


class CopyBeforeWrite(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """While active, copies tensors to the host before operations of its thread overwrite them.

    Tensors that are created while it is active are not saved.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[tuple[int, torch.dtype, Look], tuple[torch.Tensor, torch.Tensor]] = {}
        # Addresses of storages that were created while this mode was active. If such a storage is
        # freed, only another new storage can get its address.
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Save the tensors that an operation writes, then run it."""
        kwargs = kwargs or {}
        for tensor in written_by(func, args, kwargs):
            self._keep(tensor.detach())
        result = func(*args, **kwargs)
        if not is_view(func):
            given = {storage_of(one) for one in tensors_in(args, kwargs)}
            self._made |= {storage_of(one) for one in tensors_in(result)} - given
        return result

    @property
    def size_bytes(self) -> int:
        """Return the size of the saved tensors in bytes."""
        return sum(int(before.nbytes) for _, before in self._kept.values())

    def restore(self) -> None:
        """Restore all saved tensors, the last saved one first."""
        for tensor, before in reversed(self._kept.values()):
            tensor.copy_(before)
        self._kept.clear()

    def _keep(self, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        place = (storage, tensor.dtype, look_of(tensor))
        if storage not in self._made and place not in self._kept:
            self._kept[place] = (tensor, tensor.to("cpu", copy=True))
