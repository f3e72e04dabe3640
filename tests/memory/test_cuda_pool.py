"""The arbiter over device memory: the same laws, and bytes that only the device may touch.

The fake driver's device memory is memory of the host, so here its bytes can be looked at.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rose._core import Arbiter, BlockAllocator, CudaDevice, Grant, GrantRefusal, ManualClock
from rose.errors import InvalidArgument, OutOfMemory, RoseError, Unavailable
from tests.fake_driver import Fake, in_child

PAGE = 2 << 20
BLOCKS_PER_SLAB = 4


def create(device: CudaDevice, **changes: Any) -> Arbiter:
    usual: dict[str, Any] = {
        "slab_bytes": PAGE,
        "slab_count": 6,
        "header_slabs": 2,
        "object_bytes_max": 2 * PAGE,
        "clock": ManualClock(),
    }
    return Arbiter.create(**{**usual, **changes}, device=device)


@contextmanager
def nothing_left(fake: Fake) -> Iterator[None]:
    yield
    assert fake.live() == []
    assert fake.faults() == []


def tenant(arbiter: Arbiter, name: str, *, reserve: int) -> tuple[int, BlockAllocator]:
    partition = arbiter.add_partition(name, reserve_slabs=reserve, limit_slabs=6)
    blocks = arbiter.allocator(
        partition, block_bytes=PAGE // BLOCKS_PER_SLAB, origin_bytes=partition * PAGE
    )
    return partition, blocks


def lend_and_take_back(arbiter: Arbiter) -> None:
    serving, _ = tenant(arbiter, "serving", reserve=2)
    rollout, blocks = tenant(arbiter, "rollout", reserve=0)

    def ask(n: int) -> Grant | GrantRefusal:
        return arbiter.grant(rollout, n, ttl_ns=1_000)

    assert ask(5) is GrantRefusal.AT_RISK
    assert isinstance(ask(4), Grant)
    ids = blocks.alloc(4 * BLOCKS_PER_SLAB)
    assert ids is not None
    deadline_ns = arbiter.now_ns() + 1_000
    revocation = arbiter.revoke(rollout, 2, deadline_ns=deadline_ns, taker=serving)
    assert arbiter.poll(revocation).pending == 2
    arbiter.check_invariants()
    blocks.free(ids)
    assert arbiter.poll(revocation).returned == 2
    arbiter.check_invariants()


@in_child()
def test_loans_come_and_go_without_a_driver_call(fake: Fake) -> None:
    with nothing_left(fake):
        arbiter = create(CudaDevice.open(0))
        built = fake.log()
        lend_and_take_back(arbiter)
        assert fake.log() == built
        del arbiter


@in_child()
def test_two_tenants_write_different_bytes(fake: Fake) -> None:
    with nothing_left(fake):
        arbiter = create(CudaDevice.open(0))
        assert arbiter.pool_bytes == 8 * PAGE
        block_bytes = PAGE // BLOCKS_PER_SLAB
        written: dict[int, int] = {}
        for name in ("serving", "rollout"):
            partition, blocks = tenant(arbiter, name, reserve=3)
            arbiter.take(partition, 3)
            for block in blocks.alloc(3 * BLOCKS_PER_SLAB) or []:
                address = arbiter.pool_address + blocks.block_offset(block)
                written[address] = len(written) + 1
                ctypes.memset(address, written[address], block_bytes)
        assert len(written) == 2 * 3 * BLOCKS_PER_SLAB
        for address, value in written.items():
            assert set(ctypes.string_at(address, block_bytes)) == {value}
        del arbiter, blocks


@in_child()
def test_host_does_not_view_device_memory(fake: Fake) -> None:
    device = CudaDevice.open(0)
    arbiter = create(device)
    assert not arbiter.is_on_host
    with pytest.raises(
        InvalidArgument, match="the pool is in device memory, which the host cannot"
    ):
        arbiter.pool_view()


def test_host_pool_has_an_address_too() -> None:
    arbiter = Arbiter.create(slab_bytes=4096, slab_count=3, header_slabs=1)
    assert arbiter.is_on_host
    view = arbiter.pool_view()
    assert arbiter.pool_address == view.ctypes.data
    assert arbiter.pool_bytes == view.nbytes == 4 * 4096


@in_child()
def test_arbiter_keeps_its_device(fake: Fake) -> None:
    with nothing_left(fake):
        device = CudaDevice.open(0)
        arbiter = create(device)
        del device
        assert fake.live() == ["contexts 1", "handles 4", "reservations 1", "mappings 4"]
        del arbiter


@in_child()
def test_nothing_leaks_when_the_nth_backend_call_fails(fake: Fake) -> None:
    device = CudaDevice.open(0)
    calls = 1 + 2 * 4 + 1  # one reservation; each object is made and mapped; the header is cleared
    for n in range(1, calls + 1):
        with pytest.raises(OutOfMemory, match="on purpose"):
            create(device, fail_backend_call=n)
        assert fake.live() == ["contexts 1"]
    create(device, fail_backend_call=calls + 1)
    assert fake.faults() == []


@in_child()
def test_nothing_leaks_when_the_nth_driver_call_fails(fake: Fake) -> None:
    device = CudaDevice.open(0)
    raised = n = 0
    while True:
        n += 1
        fake.reset()
        fake.fail("*", nth=n, code=2)
        try:
            create(device)
        except RoseError:
            raised += 1
        assert (fake.live(), fake.faults(), fake.depth()) == (["contexts 1"], [], 0), f"call {n}"
        if fake.is_fail_pending():
            break
    # A push and a call; create, map and set access; and of the header: priorities, a stream, the
    # memset and a look at the stream, each with its push.
    assert raised == 2 * (1 + 1) + 4 * (2 + 3) + 4 * 2


@in_child()
def test_device_without_room_says_which_call_failed(fake: Fake) -> None:
    device = CudaDevice.open(0)
    fake.set_memory(7 * PAGE)
    with pytest.raises(OutOfMemory, match=r"^cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"):
        create(device)
    assert fake.live() == ["contexts 1"]


@in_child()
def test_slabs_are_whole_pages_of_the_driver(fake: Fake) -> None:
    with pytest.raises(InvalidArgument, match=r"32768 bytes is not a multiple of .* 2097152 bytes"):
        create(CudaDevice.open(0), slab_bytes=4096)


@in_child(FAKECUDA_ATTRIBUTES="102=0")
def test_device_without_virtual_memory_is_refused(fake: Fake) -> None:
    with pytest.raises(Unavailable, match=r"Fake GPU 0\) has no virtual memory management"):
        create(CudaDevice.open(0))
