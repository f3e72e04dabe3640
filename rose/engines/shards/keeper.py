"""Keeps the bits that a piece of code is about to write over, so that they can be put back."""

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


class Keeper(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """Copies what is written to the host before it is, while it is active, on one thread.

    Tensors that the code makes itself are not kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[tuple[int, torch.dtype, Look], tuple[torch.Tensor, torch.Tensor]] = {}
        # By address: what was freed while the keeper was active is made again while it is.
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Keep what an operation writes, and do it."""
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
        """Return what the host holds for it."""
        return sum(int(before.nbytes) for _, before in self._kept.values())

    def restore(self) -> None:
        """Put everything back, the last write first."""
        for tensor, before in reversed(self._kept.values()):
            tensor.copy_(before)
        self._kept.clear()

    def _keep(self, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        place = (storage, tensor.dtype, look_of(tensor))
        if storage not in self._made and place not in self._kept:
            self._kept[place] = (tensor, tensor.to("cpu", copy=True))
