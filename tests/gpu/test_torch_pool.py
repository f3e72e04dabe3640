"""Tensors that torch makes in rose's slabs, on a device."""

import gc
from typing import Any

import pytest

from rose.units import MIB

pytestmark = pytest.mark.gpu

SLAB = 32 * MIB
SLABS = 8
HELD = 4


def test_tensors_lie_in_the_slabs_and_go_again(device: Any) -> None:
    import torch

    from rose._core import Arbiter
    from rose.engines.torch_pool import tensor_pool, withdraw
    from rose.memory import TensorHeap

    place = torch.device("cuda:0")
    torch.zeros(1, device=place)
    arbiter = Arbiter.create(slab_bytes=SLAB, slab_count=SLABS, header_slabs=0, device=device)
    partition = arbiter.add_partition("weights", reserve_slabs=0, limit_slabs=SLABS)
    allocator = arbiter.allocator(partition, block_bytes=SLAB, origin_bytes=0)
    slabs = arbiter.take(partition, HELD)
    heap = TensorHeap(arbiter, allocator, slabs)
    first = arbiter.pool_address + min(slabs) * SLAB
    pool = tensor_pool(heap, place)
    with torch.cuda.use_mem_pool(pool):
        weights = [torch.full((MIB,), float(n), device=place) for n in range(16)]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(HELD * SLAB + 1, dtype=torch.uint8, device=place)
    elsewhere = torch.zeros(MIB, device=place)
    for n, one in enumerate(weights):
        assert first <= one.data_ptr() < first + HELD * SLAB
        assert bool((one == n).all())
    assert not first <= elsewhere.data_ptr() < first + SLABS * SLAB
    assert heap.core.used_bytes >= 64 * MIB
    torch.cuda.synchronize()
    del weights, one, pool
    gc.collect()
    torch.cuda.empty_cache()
    withdraw(place)
    heap.close()
    assert arbiter.give_back(partition, HELD) == HELD
