"""Named laws of the arbiter, from Python: each falls when its mechanism is taken out."""

import mmap
import os
import threading
from pathlib import Path

import pytest

from rose._core import (
    Arbiter,
    BlockAllocator,
    Grant,
    GrantRefusal,
    LedgerView,
    ManualClock,
    RenewAnswer,
    SlabState,
)
from rose.errors import OutOfMemory

SLAB, BLOCKS_PER_SLAB, TTL = 4096, 4, 1_000


class Device:
    """Eight slabs of four blocks; serving has a reserve of three, the rollout a limit of six."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.arbiter = Arbiter.create(
            slab_bytes=SLAB, slab_count=8, header_slabs=2, clock=self.clock
        )
        self.serving = self.arbiter.add_partition("serving", reserve_slabs=3, limit_slabs=8)
        self.rollout = self.arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=6)
        self.blocks: BlockAllocator = self.arbiter.allocator(
            self.rollout, block_bytes=SLAB // BLOCKS_PER_SLAB, origin_bytes=SLAB
        )

    def ask(self, n: int) -> Grant | GrantRefusal:
        return self.arbiter.grant(self.rollout, n, ttl_ns=TTL)

    def grant(self, n: int) -> Grant:
        answer = self.ask(n)
        assert isinstance(answer, Grant)
        return answer

    def revoke(self, n: int) -> int:
        deadline_ns = self.arbiter.now_ns() + TTL
        return self.arbiter.revoke(self.rollout, n, deadline_ns=deadline_ns, taker=self.serving)

    def held(self, partition: int) -> int:
        return self.arbiter.snapshot().partitions[partition].held

    def renew(self, lease: Grant, *, lease_epoch: int | None = None) -> RenewAnswer:
        epoch = lease.lease_epoch if lease_epoch is None else lease_epoch
        return self.arbiter.renew(lease.lease_id, lease_epoch=epoch, ttl_ns=TTL)


@pytest.fixture
def device() -> Device:
    return Device()


# ---- taking back


def test_wait_lets_the_other_thread_free(device: Device) -> None:
    device.grant(1)
    ids = device.blocks.alloc(1)
    revocation = device.revoke(1)
    other = threading.Timer(0.01, device.blocks.free, [ids])
    other.start()
    progress = device.arbiter.wait(revocation, timeout_ns=30_000_000_000)
    other.join()
    assert progress.returned == 1


# ---- blocks


def test_many_blocks_come_as_one_list(device: Device) -> None:
    arbiter = Arbiter.create(slab_bytes=SLAB, slab_count=4, header_slabs=0)
    arbiter.add_partition("one", reserve_slabs=0, limit_slabs=4)
    blocks = arbiter.allocator(0, block_bytes=16, origin_bytes=0)
    arbiter.take(0, 4)
    assert sorted(blocks.alloc(1024) or []) == list(range(1024))
    assert blocks.alloc(1) is None
    blocks.free(tuple(range(1024)))
    assert blocks.alloc(1 << 40) is None


# ---- the world


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def pool_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:rose")


def test_nothing_leaks_when_the_nth_backend_call_fails() -> None:
    def create(fail_backend_call: int) -> None:
        Arbiter.create(
            slab_bytes=SLAB,
            slab_count=3,
            header_slabs=1,
            object_bytes_max=SLAB,
            fail_backend_call=fail_backend_call,
        )

    create(0)
    files, mappings = open_files(), pool_mappings()
    calls = 1 + 2 * 4 + 1  # one reservation; each slab is made and mapped; the header is cleared
    for n in range(1, calls + 1):
        with pytest.raises(OutOfMemory):
            create(n)
    create(calls + 1)
    assert open_files() == files
    assert pool_mappings() == mappings


def test_view_keeps_the_pool_alive() -> None:
    view = Arbiter.create(slab_bytes=SLAB, slab_count=2, header_slabs=1).pool_view()
    assert view.shape == (3 * SLAB,)
    view[:] = 7
    assert view.sum() == 7 * 3 * SLAB
    before = pool_mappings()
    del view
    assert pool_mappings() < before


def test_allocator_keeps_the_arbiter_alive() -> None:
    def make() -> BlockAllocator:
        arbiter = Arbiter.create(slab_bytes=SLAB, slab_count=2, header_slabs=0)
        arbiter.add_partition("one", reserve_slabs=0, limit_slabs=2)
        arbiter.take(0, 1)
        return arbiter.allocator(0, block_bytes=1024, origin_bytes=0)

    assert make().alloc(4) == [0, 1, 2, 3]


def test_ledger_can_be_read_by_others_and_written_by_none(device: Device) -> None:
    device.grant(1)
    fd = device.arbiter.share_ledger()
    try:
        view = LedgerView.open(fd)
        with pytest.raises(PermissionError):
            mmap.mmap(fd, 64)
    finally:
        os.close(fd)
    view.audit()
    record = view.records()[0]
    assert (record.owner, record.state) == (device.rollout, SlabState.GRANTED)
    assert record.lease_epoch == view.epoch() == device.arbiter.epoch
