"""A pool in several mappings of a device: attached whole, lent slab by slab, orphaned."""

from typing import Any, Final

import numpy as np
import pytest

from rose.units import MIB

pytestmark = pytest.mark.gpu

SLAB: Final = 4 * MIB
SLABS: Final = 6


def create(device: Any, *, object_bytes_max: int = 2 * SLAB) -> Any:
    from rose._core import Arbiter

    return Arbiter.create(
        slab_bytes=SLAB,
        slab_count=SLABS,
        header_slabs=1,
        object_bytes_max=object_bytes_max,
        device=device,
    )


def tensor(owner: Any, *, first_slab: int = 0, slabs: int = SLABS) -> Any:
    """Return lendable slabs of a mapping as torch sees them."""
    import torch

    from rose.engines.torch import as_tensor
    from rose.memory import DeviceArray

    address = owner.pool_address + (1 + first_slab) * SLAB
    array = DeviceArray(owner, address, (slabs * SLAB,), np.dtype(np.uint8))
    return as_tensor(array, torch.device("cuda:0"))


def test_attached_pool_shows_the_same_bytes(device: Any) -> None:
    import torch

    from rose._core import Pool

    arbiter = create(device)
    here = tensor(arbiter)
    for slab in range(SLABS):
        here[slab * SLAB : (slab + 1) * SLAB] = slab + 1
    torch.cuda.synchronize()
    there = tensor(Pool.attach(arbiter.share_pool(), device=device))
    assert there.data_ptr() != here.data_ptr()
    for slab in range(SLABS):
        assert bool((there[slab * SLAB : (slab + 1) * SLAB] == slab + 1).all())
    there[-1] = 99
    torch.cuda.synchronize()
    assert int(here[-1]) == 99


def test_bytes_survive_the_death_of_the_process_that_made_them(device: Any) -> None:
    import torch

    from bench.gpu.exporter import exporter
    from rose._core import Pool

    with exporter(slab_bytes=SLAB, slabs=1 + SLABS) as other:
        bytes_ = tensor(Pool.attach(other.export, device=device))
        bytes_.fill_(7)
        torch.cuda.synchronize()
        other.kill()
        assert bool((bytes_ == 7).all())


def test_lent_slab_is_zeros_in_the_window_and_the_others_are_as_they_were(device: Any) -> None:
    import torch

    from bench.windows import keep, open_window, take
    from rose._core import Grant
    from rose.memory import MappedLoans

    arbiter = create(device, object_bytes_max=SLAB)
    partition = arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=SLABS)
    arbiter.allocator(partition, block_bytes=SLAB, origin_bytes=0)
    tensor(arbiter).fill_(0x5A)
    torch.cuda.synchronize()
    window = open_window(arbiter, header_index=0, device=device)
    grant = arbiter.grant(partition, 2, ttl_ns=10**12)
    assert isinstance(grant, Grant)
    with MappedLoans(arbiter, partition).lend(grant.slabs) as lent:
        take(window, lent)
    for slab in grant.slabs:
        mine = tensor(window, first_slab=slab, slabs=1)
        assert not bool(mine.any())
        mine.fill_(slab + 1)
    torch.cuda.synchronize()
    for slab in range(SLABS):
        expected = slab + 1 if slab in grant.slabs else 0x5A
        assert bool((tensor(arbiter, first_slab=slab, slabs=1) == expected).all())
    arbiter.revoke(partition, 2, deadline_ns=arbiter.now_ns() + 10**9)
    keep(window, [])
    assert window.sweep(SLABS) == 2
    for slab in grant.slabs:  # serving's mapping never went
        assert bool((tensor(arbiter, first_slab=slab, slabs=1) == slab + 1).all())
