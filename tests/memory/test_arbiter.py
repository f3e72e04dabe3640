"""Named laws of the arbiter, from Python: each falls when its mechanism is taken out."""

import mmap
import os
import threading
from collections.abc import Callable
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
from rose.errors import CorruptData, InvalidArgument, OutOfMemory

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


# ---- who may hold what


def test_floor_holds_against_the_other_tenant(device: Device) -> None:
    assert device.ask(6) is GrantRefusal.AT_RISK
    device.grant(5)
    assert device.ask(1) is GrantRefusal.AT_RISK
    assert device.arbiter.take(device.rollout, 1) == []
    assert len(device.arbiter.take(device.serving, 3)) == 3


def test_ceiling_holds_against_oneself(device: Device) -> None:
    assert device.ask(7) is GrantRefusal.OVER_LIMIT


def test_empty_pool_is_a_refusal(device: Device) -> None:
    device.arbiter.take(device.serving, 8)
    assert device.ask(1) is GrantRefusal.POOL_EMPTY


def test_reserve_larger_than_the_pool_names_both(device: Device) -> None:
    with pytest.raises(InvalidArgument, match=r"reserve of 9 slabs .* pool of 8 slabs .* lower"):
        device.arbiter.add_partition("third", reserve_slabs=6, limit_slabs=8)


# ---- leases


def test_returned_lease_is_final(device: Device) -> None:
    lease = device.grant(2)
    assert device.renew(lease) is RenewAnswer.RENEWED
    assert device.renew(lease, lease_epoch=lease.lease_epoch - 1) is RenewAnswer.STALE_EPOCH
    device.revoke(2)
    assert device.renew(lease) is RenewAnswer.OVER


def test_fenced_lease_never_comes_back(device: Device) -> None:
    lease = device.grant(2)
    device.blocks.alloc(5)
    revocation = device.arbiter.revoke(device.rollout, 1, deadline_ns=device.arbiter.now_ns())
    assert device.arbiter.poll(revocation).fenced == 1
    # One slab is still on loan and in time, but its holder was late with the other.
    assert device.held(device.rollout) == 1
    assert device.renew(lease) is RenewAnswer.OVER
    device.arbiter.prove_completion(device.rollout)
    assert device.renew(lease) is RenewAnswer.OVER


def test_lease_past_its_ttl_is_revoked(device: Device) -> None:
    lease = device.grant(2)
    device.clock.advance(TTL)
    assert device.renew(lease) is RenewAnswer.OVER
    (revocation,) = device.arbiter.expire(grace_ns=TTL)
    assert device.arbiter.poll(revocation).returned == 2
    assert device.arbiter.snapshot().unowned == 8


# ---- taking back


def test_revoking_slab_gives_no_new_blocks(device: Device) -> None:
    device.grant(1)
    ids = device.blocks.alloc(1)
    device.revoke(1)
    assert device.blocks.alloc(1) is None
    assert device.blocks.free_blocks == 0
    device.blocks.free(ids)
    assert device.held(device.serving) == 1


def test_pinned_slab_never_changes_owner(device: Device) -> None:
    device.grant(1)
    ids = device.blocks.alloc(2)
    assert ids is not None
    pin = device.blocks.pin(ids)
    device.blocks.free(ids)
    revocation = device.revoke(1)
    assert device.arbiter.poll(revocation).pending == 1
    assert device.arbiter.leaving(device.rollout) == [0]
    assert device.held(device.rollout) == 1
    device.blocks.unpin(pin)
    assert device.arbiter.poll(revocation).returned == 1
    assert device.arbiter.leaving(device.rollout) == []


def test_idle_slabs_leave_before_busy_ones(device: Device) -> None:
    device.grant(3)
    device.blocks.alloc(5)
    assert device.arbiter.poll(device.revoke(1)).returned == 1


def test_preferred_victims_come_first(device: Device) -> None:
    device.grant(2)
    device.blocks.alloc(5)
    by_used = sorted(device.arbiter.candidates(device.rollout), key=lambda one: one.used)
    assert [one.used for one in by_used] == [1, 4]
    device.arbiter.revoke(
        device.rollout, 1, deadline_ns=TTL, taker=device.serving, preferred=[by_used[1].slab]
    )
    assert device.arbiter.leaving(device.rollout) == [by_used[1].slab]


def test_taker_at_its_ceiling_gets_nothing(device: Device) -> None:
    small = device.arbiter.add_partition("small", reserve_slabs=0, limit_slabs=1)
    device.grant(3)
    device.arbiter.revoke(device.rollout, 3, deadline_ns=TTL, taker=small)
    assert device.held(small) == 1
    assert device.arbiter.snapshot().unowned == 7


def test_slab_needed_for_the_floor_goes_to_nobody(device: Device) -> None:
    arbiter = device.arbiter
    arbiter.take(device.serving, 3)
    third = arbiter.add_partition("third", reserve_slabs=2, limit_slabs=8)
    arbiter.grant(third, 5, ttl_ns=TTL)
    arbiter.revoke(third, 5, deadline_ns=TTL, taker=device.rollout)
    assert device.held(device.rollout) == 3
    assert arbiter.snapshot().unowned == 2


def test_late_slab_is_quarantined_until_proven(device: Device) -> None:
    lease = device.grant(2)
    ids = device.blocks.alloc(8)
    assert ids is not None
    revocation = device.revoke(2)
    device.clock.advance(TTL)
    progress = device.arbiter.poll(revocation)
    assert (progress.pending, progress.fenced) == (0, 2)
    snapshot = device.arbiter.snapshot()
    assert (snapshot.unowned, snapshot.quarantined) == (6, 2)
    assert device.blocks.capacity_blocks == 0
    assert device.renew(lease) is RenewAnswer.OVER
    device.blocks.free(ids[:4])  # accepted: evidence for one slab
    assert device.arbiter.snapshot().quarantined == 1
    assert device.arbiter.prove_completion(device.rollout) == 1
    assert device.arbiter.snapshot().unowned == 8


def test_wait_lets_the_other_thread_free(device: Device) -> None:
    device.grant(1)
    ids = device.blocks.alloc(1)
    revocation = device.revoke(1)
    other = threading.Timer(0.01, device.blocks.free, [ids])
    other.start()
    progress = device.arbiter.wait(revocation, timeout_ns=30_000_000_000)
    other.join()
    assert progress.returned == 1


def test_dropped_partition_leaves_only_what_it_used(device: Device) -> None:
    device.grant(3)
    device.blocks.alloc(5)
    device.arbiter.drop_partition(device.rollout)
    snapshot = device.arbiter.snapshot()
    assert (snapshot.unowned, snapshot.quarantined) == (6, 2)
    assert not snapshot.partitions[device.rollout].is_live
    with pytest.raises(InvalidArgument, match="was dropped"):
        device.arbiter.take(device.rollout, 1)


# ---- blocks


def test_double_free_is_caught(device: Device) -> None:
    device.grant(1)
    ids = device.blocks.alloc(2)
    assert ids is not None
    device.blocks.free(ids[:1])
    for again in (ids, ids[:1], [ids[1], ids[1]]):
        with pytest.raises(InvalidArgument, match="is free already"):
            device.blocks.free(again)
    assert device.blocks.used_blocks == 1


def test_stale_id_is_caught(device: Device) -> None:
    device.grant(1)
    ids = device.blocks.alloc(1)
    assert ids is not None
    generation = device.blocks.generation(0)
    device.arbiter.revoke(device.rollout, 1, deadline_ns=TTL)
    device.blocks.free(ids)
    with pytest.raises(InvalidArgument, match="is stale"):
        device.blocks.free(ids)
    device.grant(1)
    assert device.blocks.alloc(1) == ids
    assert device.blocks.generation(0) == generation + 1


@pytest.mark.parametrize("block", [-1, 0, 3, 36, 1 << 30, 1 << 40])
def test_id_out_of_range_is_caught(device: Device, block: int) -> None:
    device.grant(5)
    with pytest.raises(InvalidArgument, match="is out of range"):
        device.blocks.free([block])


def test_ticket_sets_blocks_aside(device: Device) -> None:
    device.grant(1)
    ticket = device.blocks.reserve(3)
    assert ticket is not None
    assert device.blocks.alloc(2) is None
    assert device.blocks.reserve(2) is None
    assert len(device.blocks.commit(ticket, 2) or []) == 2
    assert device.blocks.commit(ticket, 2) is None
    device.blocks.cancel(ticket)
    assert device.blocks.used_blocks == 2
    with pytest.raises(InvalidArgument, match="has ended"):
        device.blocks.cancel(ticket)


def test_ticket_does_not_delay_a_revocation(device: Device) -> None:
    device.grant(1)
    ticket = device.blocks.reserve(3)
    assert ticket is not None
    assert device.arbiter.poll(device.revoke(1)).returned == 1
    assert device.blocks.commit(ticket, 1) is None
    device.blocks.cancel(ticket)


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


@pytest.mark.parametrize("content", [b"", b"x" * 200])
def test_what_is_no_ledger_is_corrupt(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no_ledger"
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises(CorruptData):
        LedgerView.open(file.fileno())


@pytest.mark.parametrize(
    "call",
    [
        lambda d: d.arbiter.take(9, 1),
        lambda d: d.arbiter.take(0, -1),
        lambda d: d.arbiter.grant(1, 1, ttl_ns=0),
        lambda d: d.arbiter.revoke(1, 0, deadline_ns=0),
        lambda d: d.arbiter.revoke(1, 1, deadline_ns=0, taker=1),
        lambda d: d.arbiter.revoke(1, 1, deadline_ns=0, preferred=[8]),
        lambda d: d.arbiter.poll(7),
        lambda d: d.arbiter.leaving(7),
        lambda d: d.arbiter.allocator(1, block_bytes=64, origin_bytes=0),
        lambda d: d.arbiter.allocator(0, block_bytes=SLAB + 1, origin_bytes=0),
        lambda d: d.blocks.alloc(-1),
        lambda d: d.blocks.reserve(-1),
        lambda d: d.blocks.commit(3, 1),
        lambda d: d.blocks.pin([4]),
        lambda d: d.blocks.pin_slabs([0]),
        lambda d: d.blocks.unpin(1),
        lambda d: d.blocks.generation(0),
        lambda d: d.blocks.slab_blocks(8),
        lambda d: d.blocks.block_offset(-1),
        lambda d: Arbiter.create(slab_bytes=100, slab_count=1, header_slabs=0),
        lambda d: Arbiter.create(slab_bytes=SLAB, slab_count=0, header_slabs=0),
    ],
)
def test_nonsense_is_an_invalid_argument(device: Device, call: Callable[[Device], object]) -> None:
    with pytest.raises(InvalidArgument):
        call(device)
    device.arbiter.check_invariants()
