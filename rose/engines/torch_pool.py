"""Torch tensors in slabs of rose's pool, through the memory pools of torch."""

import functools

import torch

from rose import _core
from rose.memory import TensorHeap


def tensor_pool(heap: TensorHeap, device: torch.device) -> torch.cuda.MemPool:
    """Return a memory pool of torch whose tensors lie in `heap`.

    Tensors that are made under `torch.cuda.use_mem_pool(pool)` lie there, and one for which there
    is no room is torch's usual `OutOfMemoryError`: nothing is taken from elsewhere. Torch asks for
    2 MiB and more at a time, so small tensors share.

    To give the slabs back: drop the tensors and the pool, call `torch.cuda.empty_cache()`, then
    `withdraw(device)`, then `heap.close()`; each says when something is left.

    Args:
        heap: in slabs of a pool on `device`.
        device: with an index; it has one heap at a time.

    Raises:
        InvalidArgument: the device has a heap already.
    """
    _core.offer_heap(device.index, heap.core)
    return torch.cuda.MemPool(_entries().allocator())


@functools.cache
def _entries() -> torch.cuda.memory.CUDAPluggableAllocator:
    """Return the one of the process: pools of some versions of torch do not keep theirs alive."""
    return torch.cuda.memory.CUDAPluggableAllocator(_core.__file__, "rose_alloc", "rose_free")


def withdraw(device: torch.device) -> None:
    """Have torch find no heap for `device` any more.

    Raises:
        Unavailable: torch still holds memory of it.
        InvalidArgument: there is none.
    """
    _core.withdraw_heap(device.index)
