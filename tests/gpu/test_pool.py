"""The pool in device memory: views of it are ordinary tensors, and tenants do not touch."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from rose.units import MIB

pytestmark = pytest.mark.gpu

SLAB: Final = 4 * MIB
SLABS: Final = 12
LAYERS, KV_HEADS, HEAD_DIM, BLOCK_TOKENS = 4, 4, 64, 16


class Tenants:
    """A pool on the device with serving and a borrower, of different geometry."""

    def __init__(self, device: Any) -> None:
        from rose._core import Arbiter
        from rose.memory import KVGeometry, KVSpace

        self.arbiter = Arbiter.create(
            slab_bytes=SLAB, slab_count=SLABS, header_slabs=2, device=device
        )
        self.geometries = [
            KVGeometry.from_attention(
                layers=layers,
                kv_heads=KV_HEADS,
                head_dim=HEAD_DIM,
                dtype_bytes=2,
                block_tokens=BLOCK_TOKENS,
            )
            for layers in (LAYERS, LAYERS + 3)
        ]
        self.spaces = []
        for index, geometry in enumerate(self.geometries):
            partition = self.arbiter.add_partition(
                f"tenant {index}", reserve_slabs=0, limit_slabs=SLABS
            )
            self.arbiter.take(partition, SLABS // 2)
            self.spaces.append(KVSpace(self.arbiter, partition, geometry, header_index=index))

    def views(self, which: int, dtype: Any = np.int16) -> list[Any]:
        import torch

        from rose.engines.torch import as_tensor

        place = torch.device("cuda:0")
        return [as_tensor(view, place) for view in self.spaces[which].views(dtype)]

    def every_block(self, which: int) -> list[int]:
        allocator = self.spaces[which].allocator
        return list(allocator.alloc(allocator.free_blocks))


@pytest.fixture
def tenants(device: Any) -> Tenants:
    return Tenants(device)


def test_the_pool_is_on_the_device(tenants: Tenants) -> None:
    from rose.errors import InvalidArgument

    assert not tenants.arbiter.is_on_host
    assert tenants.arbiter.pool_bytes == (SLABS + 2) * SLAB
    assert tenants.arbiter.pool_address % SLAB % (2 * MIB) == 0
    with pytest.raises(InvalidArgument, match="pool_address"):
        tenants.arbiter.pool_view()


def test_tenants_do_not_touch(tenants: Tenants) -> None:
    import torch

    ids = [torch.tensor(tenants.every_block(which), device="cuda") for which in range(2)]
    views = [tenants.views(which) for which in range(2)]
    for which, patterns in enumerate((0x1111, 0x2222)):
        for layer, view in enumerate(views[which]):
            view[ids[which]] = patterns + layer
    for which, patterns in enumerate((0x1111, 0x2222)):
        for layer, view in enumerate(views[which]):
            assert bool((view[ids[which]] == patterns + layer).all())


def test_null_blocks_read_as_zeros_although_the_memory_was_used_before(device: Any) -> None:
    import torch

    first = Tenants(device)
    for which in range(2):
        for view in first.views(which):
            view.fill_(0x5A5A)
    torch.cuda.synchronize()
    del first, view
    again = Tenants(device)
    for which, space in enumerate(again.spaces):
        for view in again.views(which):
            assert not bool(view[space.null_block].any())


def test_a_view_keeps_the_memory(device: Any) -> None:
    import torch

    views = Tenants(device).views(0)  # nobody else holds the arbiter
    views[0].fill_(7)
    torch.cuda.synchronize()
    assert bool((views[0] == 7).all())


def test_a_pool_gives_its_memory_back(device: Any) -> None:
    import gc

    Tenants(device)
    gc.collect()
    before, _ = device.memory_info()
    for _ in range(3):
        tenants = Tenants(device)
        held, _ = device.memory_info()
        assert before - held >= SLABS * SLAB // 2
        del tenants
        gc.collect()
    after, _ = device.memory_info()
    assert before - after < SLAB


def test_attention_over_blocks_is_attention(tenants: Tenants) -> None:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    sequences, blocks_each = 3, 8
    tokens = blocks_each * BLOCK_TOKENS
    ids = tenants.every_block(0)[: sequences * blocks_each]
    order = torch.tensor(ids, device="cuda")[torch.randperm(len(ids), device="cuda")]
    table = order.view(sequences, blocks_each)
    for view in tenants.views(0):
        rows = view.view(torch.bfloat16)
        shape = (sequences, tokens, KV_HEADS, HEAD_DIM)
        keys, values = (torch.randn(shape, device="cuda").to(torch.bfloat16) for _ in range(2))
        both = torch.stack((keys, values), 1).view(
            sequences, 2, blocks_each, BLOCK_TOKENS, KV_HEADS, HEAD_DIM
        )
        # A block holds its tokens of K, then those of V.
        rows[order] = both.transpose(1, 2).reshape(len(ids), -1)
        found = rows[table.flatten()].view(
            sequences, blocks_each, 2, BLOCK_TOKENS, KV_HEADS, HEAD_DIM
        )
        query = torch.randn(sequences, KV_HEADS, 1, HEAD_DIM, device="cuda").to(torch.bfloat16)
        over_blocks, dense = (
            scaled_dot_product_attention(query, k.transpose(1, 2), v.transpose(1, 2))
            for k, v in (
                (found[:, :, 0].reshape(shape), found[:, :, 1].reshape(shape)),
                (keys, values),
            )
        )
        assert torch.equal(over_blocks, dense)


def test_cupy_takes_a_view(tenants: Tenants) -> None:
    cupy = pytest.importorskip("cupy")
    view = tenants.spaces[0].views(np.float16)[1]
    taken = cupy.asarray(view)
    assert taken.data.ptr == view.address
    assert taken.shape == view.shape
    taken[0] = 1.5
    cupy.cuda.get_current_stream().synchronize()
    assert float(tenants.views(0, np.float16)[1][0].float().sum()) == 1.5 * view.shape[1]


def test_an_ownership_move_touches_no_memory(tenants: Tenants, device: Any) -> None:
    import torch

    views = tenants.views(0)
    for view in views:
        view.fill_(3)
    torch.cuda.synchronize()
    before, _ = device.memory_info()
    for _ in range(20):
        tenants.arbiter.give_back(0, 2)
        tenants.arbiter.take(1, 2)
        tenants.arbiter.give_back(1, 2)
        tenants.arbiter.take(0, 2)
    assert device.memory_info()[0] == before
    assert all(bool((view == 3).all()) for view in views)


IMPORTER: Final = """
import sys
import numpy as np
from bench.gpu.driver_calls import DriverCalls
from tests.gpu.memory import Memory
memory, calls = Memory(), DriverCalls()
with calls.imported(int(sys.argv[1]), int(sys.argv[2])) as address:
    content = np.empty(8, np.uint8)
    memory.to_host(content, address)
    assert (content == 0x5A).all(), content
    memory.fill(address, 0x3C, 8)
    memory.synchronize()
"""


def test_memory_made_as_the_pools_is_can_be_imported_by_a_child(
    device: Any, tmp_path: Path
) -> None:
    """What two processes on one GPU will need of the machine: descriptors that can be passed."""
    from bench.gpu.driver_calls import DriverCalls
    from tests.gpu.memory import Memory

    root = Path(__file__).resolve().parents[2]
    memory, calls = Memory(), DriverCalls()
    size = 2 * MIB
    with calls.exported(size) as (fd, address):
        memory.fill(address, 0x5A, 8)
        memory.synchronize()
        done = subprocess.run(
            [sys.executable, "-c", IMPORTER, str(fd), str(size)],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root)},
            pass_fds=(fd,),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        content = np.empty(8, np.uint8)
        memory.to_host(content, address)
        assert (content == 0x3C).all()


def test_the_driver_is_asked_in_the_right_types() -> None:
    """The layout of what the driver is handed, as its header has it."""
    from bench.gpu import driver_calls

    assert ctypes.sizeof(driver_calls.AllocationProperties) == 32
    assert ctypes.sizeof(driver_calls.Access) == 12
