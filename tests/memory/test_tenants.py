"""A borrower in another process: what it left comes home without it, what it held when it dies."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rose._core import (
    Arbiter,
    Attachment,
    Grant,
    LedgerView,
    Process,
)
from rose.errors import CorruptData, InvalidArgument, Unavailable
from tests.memory.tenant_process import BLOCK_BYTES, TenantProcess

SLAB, SLABS = 4096, 8
SECOND = 10**9


class Device:
    """Eight slabs of four blocks; serving has a reserve of two, the tenant a limit of six."""

    def __init__(self, *, kill_late: bool = True) -> None:
        self.arbiter = Arbiter.create(slab_bytes=SLAB, slab_count=SLABS, header_slabs=2)
        self.serving = self.arbiter.add_partition("serving", reserve_slabs=2, limit_slabs=SLABS)
        self.blocks = self.arbiter.allocator(self.serving, block_bytes=BLOCK_BYTES, origin_bytes=0)
        self.rollout = self.arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=6)
        self.tenant = TenantProcess(self.arbiter, self.rollout, kill_late=kill_late)

    def grant(self, n: int) -> Grant:
        answer = self.arbiter.grant(self.rollout, n, ttl_ns=60 * SECOND)
        assert isinstance(answer, Grant)
        return answer

    def revoke(self, n: int, *, within_ns: int = 60 * SECOND) -> int:
        deadline_ns = self.arbiter.now_ns() + within_ns
        return self.arbiter.revoke(self.rollout, n, deadline_ns=deadline_ns, taker=self.serving)

    def held(self, partition: int) -> int:
        return self.arbiter.snapshot().partitions[partition].held

    def is_whole(self) -> bool:
        """Whether the books balance and serving can have its reserve and all that is free."""
        self.arbiter.check_invariants()
        self.arbiter.take(self.serving, SLABS)
        return self.held(self.serving) == SLABS


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    with made.tenant:
        yield made


@pytest.fixture
def patient() -> Iterator[Device]:
    """Return a device whose tenant is not killed when it is late."""
    made = Device(kill_late=False)
    with made.tenant:
        yield made


# ---- a loan and its way back


def test_a_tenant_knows_what_is_lent_leaving_and_late(patient: Device) -> None:
    def said(of: str) -> Any:
        return patient.tenant.do(f"tenant.{of}(tenant.partition)")

    patient.grant(3)
    patient.tenant.do("tenant.admit(), held.extend(blocks.alloc(12))")
    assert (said("lent"), said("leaving"), said("is_late")) == ([0, 1, 2], [], False)
    patient.tenant.do("tenant.set_ranks([0, 1, 2], [7, 1, 9])")
    late = patient.arbiter.revoke(patient.rollout, 1, deadline_ns=patient.arbiter.now_ns() + SECOND)
    assert (said("lent"), said("leaving"), said("is_late")) == ([0, 2], [1], False)
    assert patient.arbiter.leaving(patient.rollout) == [1]
    assert patient.arbiter.lent(patient.rollout) == [0, 2]
    patient.arbiter.wait(late, timeout_ns=60 * SECOND)
    assert (said("lent"), set(said("leaving")), said("is_late")) == ([0, 2], {1}, True)
    assert patient.arbiter.is_late(patient.rollout)


def test_report_of_the_tenant_arrives(device: Device) -> None:
    device.grant(2)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(5))")
    device.tenant.do("tenant.beat(progress=42)")
    told = device.tenant.tenant
    assert (told.progress, told.used_blocks, told.free_blocks) == (42, 5, 3)
    assert 0 < told.heartbeat_ns <= device.arbiter.now_ns()
    used = sorted(one.used for one in device.arbiter.candidates(device.rollout))
    assert used == [1, 4]


# ---- a tenant that does as it likes


def test_mailbox_cannot_be_resized_or_sealed_by_a_tenant(device: Device) -> None:
    fd = device.tenant.tenant.mailbox_fd
    seal = "__import__('fcntl').fcntl(fds[0], 1033, 8)"  # F_ADD_SEALS, F_SEAL_WRITE
    for attempt in ("os.ftruncate(fds[0], 1)", "os.ftruncate(fds[0], 10**6)", seal):
        with pytest.raises(RuntimeError, match="PermissionError"):
            device.tenant.do(attempt, fds=(fd,))


# ---- attaching


def attach_here(device: Device, **other: object) -> Attachment:
    ledger_fd = device.arbiter.share_ledger()
    tenant = device.tenant.tenant
    parts: dict[str, object] = {
        "pool": device.arbiter.share_pool(),
        "ledger_fd": ledger_fd,
        "mailbox_fd": tenant.mailbox_fd,
        "to_arbiter_fd": tenant.to_arbiter_fd,
        "to_tenant_fd": tenant.to_tenant_fd,
    }
    try:
        return Attachment.create(**(parts | other))  # type: ignore[arg-type]
    finally:
        os.close(ledger_fd)


def open_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_does_not_belong_together_is_refused(device: Device, tmp_path: Path) -> None:
    other = Arbiter.create(slab_bytes=SLAB, slab_count=SLABS, header_slabs=2)
    larger = Arbiter.create(slab_bytes=SLAB, slab_count=SLABS + 1, header_slabs=2)
    with ExitStack() as stack:
        file = stack.enter_context((tmp_path / "file").open("w+b"))
        file.write(os.pread(device.tenant.tenant.mailbox_fd, 10**6, 0))
        file.flush()
        unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
        stack.callback(os.close, unsealed)
        ledger_fd = device.arbiter.share_ledger()
        stack.callback(os.close, ledger_fd)
        os.write(unsealed, os.pread(ledger_fd, 10**6, 0))
        other_fd = other.share_ledger()
        stack.callback(os.close, other_fd)
        before = open_fds()
        for refused in (
            {"ledger_fd": other_fd},
            {"ledger_fd": unsealed},
            {"ledger_fd": device.tenant.tenant.mailbox_fd},
            {"mailbox_fd": file.fileno()},
            {"mailbox_fd": ledger_fd},
            {"to_tenant_fd": 10**6},
        ):
            with pytest.raises((CorruptData, OSError, Unavailable, InvalidArgument)):
                attach_here(device, **refused)
        pool = larger.share_pool()
        with pytest.raises(InvalidArgument):
            attach_here(device, pool=pool)
        del pool
        assert open_fds() == before


def test_ninth_partition_with_slabs_is_refused(device: Device) -> None:
    for _ in range(6):
        device.arbiter.add_partition("more", reserve_slabs=0, limit_slabs=1)
    with pytest.raises(Unavailable, match="at most 8"):
        device.arbiter.add_partition("more", reserve_slabs=0, limit_slabs=1)


def test_peer_of_a_socket_is_known_by_the_kernel() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Process.of_peer(ours.fileno())
        assert (peer.pid, peer.uid, peer.is_alive) == (os.getpid(), os.getuid(), True)


def test_partition_of_this_process_cannot_be_lost(device: Device) -> None:
    with pytest.raises(InvalidArgument, match="this process"):
        device.arbiter.lose_tenant(device.serving)


# ---- the ledger


def test_ledger_shows_partitions_leases_and_revocations(device: Device) -> None:
    lease = device.grant(3)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(5)), tenant.beat()")
    revocation = device.revoke(2)
    fd = device.arbiter.share_ledger()
    view = LedgerView.open(fd)
    os.close(fd)
    view.audit()
    serving, rollout = view.partitions()
    assert (serving.name, serving.reserve_slabs, serving.held) == ("serving", 2, 1)
    assert (rollout.name, rollout.limit_slabs, rollout.held, rollout.leases) == ("rollout", 6, 2, 1)
    note = rollout.revocation
    assert note is not None
    assert (note.id, note.wanted, note.pending) == (revocation, 2, 1)
    assert note.deadline_ns > device.arbiter.now_ns()
    assert note.due_ns == note.deadline_ns
    assert rollout.used_blocks == 5
    lent = [record for record in view.records() if record.owner == device.rollout]
    assert {record.lease_id for record in lent} == {lease.lease_id}


def ledger_of(device: Device) -> LedgerView:
    fd = device.arbiter.share_ledger()
    try:
        return LedgerView.open(fd)
    finally:
        os.close(fd)


def test_ledger_shows_the_earliest_deadline_that_is_under_way(device: Device) -> None:
    device.grant(4)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(16))")
    now_ns = device.arbiter.now_ns()
    for seconds in (50, 40, 60):
        device.arbiter.revoke(device.rollout, 1, deadline_ns=now_ns + seconds * SECOND)
    view = ledger_of(device)
    note = view.partitions()[device.rollout].revocation
    assert note is not None
    assert (note.deadline_ns - now_ns, note.due_ns - now_ns) == (60 * SECOND, 40 * SECOND)
    device.tenant.do("blocks.free(held)")
    device.arbiter.sweep(device.rollout)
    note = view.partitions()[device.rollout].revocation
    assert note is not None
    assert (note.deadline_ns - now_ns, note.due_ns) == (60 * SECOND, 0)


def test_ledger_shows_the_pins_of_every_tenant(device: Device) -> None:
    device.arbiter.take(device.serving, 1)
    first_ns = device.arbiter.now_ns()
    pins = [device.blocks.pin_slabs([0]), device.blocks.pin_slabs([0])]
    device.grant(1)
    device.tenant.do("tenant.admit(), held.append(blocks.pin_slabs([1])), tenant.beat()")
    device.arbiter.expire(grace_ns=SECOND)
    view = ledger_of(device)

    def shown() -> list[tuple[int, bool]]:
        now_ns = device.arbiter.now_ns()
        return [(one.pins, first_ns < one.oldest_pin_ns < now_ns) for one in view.partitions()]

    assert shown() == [(2, True), (1, True)]
    changed_ns = view.changed_ns()
    for pin in pins:
        device.blocks.unpin(pin)
    device.tenant.do("blocks.unpin(held.pop()), tenant.beat()")
    assert shown() == [(2, True), (1, True)]  # as the arbiter saw them last
    device.arbiter.expire(grace_ns=SECOND)
    assert shown() == [(0, False), (0, False)]
    assert view.changed_ns() == changed_ns  # nothing changed hands
