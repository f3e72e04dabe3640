"""A borrower in another process: what it left comes home without it, what it held when it dies."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from rose._core import (
    Arbiter,
    Attachment,
    Grant,
    LedgerView,
    Process,
)
from rose.errors import CorruptData, InvalidArgument, Unavailable

SLAB, SLABS, BLOCK_BYTES = 4096, 8, 1024
SECOND = 10**9


class Device:
    """Eight slabs of four blocks; serving has a reserve of two, the tenant a limit of six.

    The tenant is attached as from another process, and is this one, so that nobody kills it.
    """

    def __init__(self) -> None:
        self.arbiter = Arbiter.create(slab_bytes=SLAB, slab_count=SLABS, header_slabs=2)
        self.serving = self.arbiter.add_partition("serving", reserve_slabs=2, limit_slabs=SLABS)
        self.blocks = self.arbiter.allocator(self.serving, block_bytes=BLOCK_BYTES, origin_bytes=0)
        self.rollout = self.arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=6)
        self.tenant = self.arbiter.add_tenant(
            self.rollout, Process.open(os.getpid()), kill_late=False
        )
        self.attached = self.attach()
        self.its_blocks = self.attached.allocator(
            self.rollout, block_bytes=BLOCK_BYTES, origin_bytes=SLAB
        )

    def attach(self, **other: object) -> Attachment:
        ledger_fd = self.arbiter.share_ledger()
        parts: dict[str, object] = {
            "pool": self.arbiter.share_pool(),
            "ledger_fd": ledger_fd,
            "mailbox_fd": self.tenant.mailbox_fd,
            "to_arbiter_fd": self.tenant.to_arbiter_fd,
            "to_tenant_fd": self.tenant.to_tenant_fd,
        }
        try:
            return Attachment.create(**(parts | other))  # type: ignore[arg-type]
        finally:
            os.close(ledger_fd)

    def grant(self, n: int) -> Grant:
        answer = self.arbiter.grant(self.rollout, n, ttl_ns=60 * SECOND)
        assert isinstance(answer, Grant)
        return answer

    def use(self, slabs: int, blocks: int) -> list[int]:
        """Lend the tenant slabs, and let it take blocks."""
        self.grant(slabs)
        self.attached.look()
        return self.its_blocks.alloc(blocks) or []

    def ledger(self) -> LedgerView:
        fd = self.arbiter.share_ledger()
        try:
            return LedgerView.open(fd)
        finally:
            os.close(fd)


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.attached.close()
    made.tenant.close()


# ---- a loan and its way back


def test_a_tenant_knows_what_is_lent_leaving_and_late(device: Device) -> None:
    def seen() -> tuple[list[int], set[int], bool]:
        books = device.attached
        return books.lent(), set(books.leaving()), books.is_late()

    device.use(3, 12)
    assert seen() == ([0, 1, 2], set(), False)
    assert device.attached.begin_plan() == ([], [0, 1, 2])
    device.attached.end_plan([1, 0, 2])
    deadline_ns = device.arbiter.now_ns() + SECOND
    late = device.arbiter.revoke(device.rollout, 1, deadline_ns=deadline_ns)
    assert seen() == ([0, 2], {1}, False)
    device.arbiter.wait(late, timeout_ns=60 * SECOND)
    assert seen() == ([0, 2], {1}, True)


def test_report_of_the_tenant_arrives(device: Device) -> None:
    device.use(2, 5)
    device.attached.beat(progress=42)
    tenant = device.tenant
    assert (tenant.progress, tenant.used_blocks, tenant.free_blocks) == (42, 5, 3)
    assert 0 < tenant.heartbeat_ns <= device.arbiter.now_ns()
    used = sorted(one.used for one in device.arbiter.candidates(device.rollout))
    assert used == [1, 4]


# ---- a tenant that does as it likes


def test_mailbox_cannot_be_resized_or_sealed_by_a_tenant(device: Device) -> None:
    fd = device.tenant.mailbox_fd
    for size in (1, 10**6):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, 1033, 8)  # F_ADD_SEALS, F_SEAL_WRITE


# ---- attaching


def open_fds() -> set[tuple[int, int, int]]:
    """Return each open descriptor with the device and inode of its file."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # The listing's own descriptor is closed by now.
            file = os.fstat(int(path.name))
            found.add((int(path.name), file.st_dev, file.st_ino))
    return found


def test_what_does_not_belong_together_is_refused(device: Device, tmp_path: Path) -> None:
    other = Arbiter.create(slab_bytes=SLAB, slab_count=SLABS, header_slabs=2)
    larger = Arbiter.create(slab_bytes=SLAB, slab_count=SLABS + 1, header_slabs=2)
    with ExitStack() as stack:
        file = stack.enter_context((tmp_path / "file").open("w+b"))
        file.write(os.pread(device.tenant.mailbox_fd, 10**6, 0))
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
            {"ledger_fd": device.tenant.mailbox_fd},
            {"mailbox_fd": file.fileno()},
            {"mailbox_fd": ledger_fd},
            {"to_tenant_fd": 10**6},
        ):
            with pytest.raises((CorruptData, OSError, Unavailable, InvalidArgument)):
                device.attach(**refused)
        pool = larger.share_pool()
        with pytest.raises(InvalidArgument):
            device.attach(pool=pool)
        del pool
        # Descriptors that earlier tests left may close meanwhile, when their objects are collected.
        assert open_fds() - before == set()


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
    device.use(3, 5)
    device.attached.beat()
    deadline_ns = device.arbiter.now_ns() + 60 * SECOND
    revocation = device.arbiter.revoke(
        device.rollout, 2, deadline_ns=deadline_ns, taker=device.serving
    )
    view = device.ledger()
    view.audit()
    serving, rollout = view.partitions()
    assert (serving.name, serving.reserve_slabs, serving.held) == ("serving", 2, 1)
    assert (rollout.name, rollout.limit_slabs, rollout.held, rollout.leases) == ("rollout", 6, 2, 1)
    note = rollout.revocation
    assert note is not None
    assert (note.id, note.wanted, note.pending) == (revocation, 2, 1)
    assert note.due_ns == note.deadline_ns == deadline_ns
    assert rollout.used_blocks == 5
    assert len({one.lease_id for one in view.records() if one.owner == device.rollout}) == 1


def test_ledger_shows_the_earliest_deadline_that_is_under_way(device: Device) -> None:
    blocks = device.use(4, 16)
    now_ns = device.arbiter.now_ns()
    for seconds in (50, 40, 60):
        device.arbiter.revoke(device.rollout, 1, deadline_ns=now_ns + seconds * SECOND)
    view = device.ledger()
    note = view.partitions()[device.rollout].revocation
    assert note is not None
    assert (note.deadline_ns - now_ns, note.due_ns - now_ns) == (60 * SECOND, 40 * SECOND)
    device.its_blocks.free(blocks)
    device.arbiter.sweep(device.rollout)
    note = view.partitions()[device.rollout].revocation
    assert note is not None
    assert (note.deadline_ns - now_ns, note.due_ns) == (60 * SECOND, 0)


def test_ledger_shows_the_pins_of_every_tenant(device: Device) -> None:
    device.arbiter.take(device.serving, 1)
    first_ns = device.arbiter.now_ns()
    pins = [device.blocks.pin_slabs([0]), device.blocks.pin_slabs([0])]
    device.use(1, 0)
    its_pin = device.its_blocks.pin_slabs([1])
    device.attached.beat()
    device.arbiter.expire(grace_ns=SECOND)
    view = device.ledger()

    def shown() -> list[tuple[int, bool]]:
        now_ns = device.arbiter.now_ns()
        return [(one.pins, first_ns < one.oldest_pin_ns < now_ns) for one in view.partitions()]

    assert shown() == [(2, True), (1, True)]
    changed_ns = view.changed_ns()
    for pin in pins:
        device.blocks.unpin(pin)
    device.its_blocks.unpin(its_pin)
    device.attached.beat()
    assert shown() == [(2, True), (1, True)]  # as the arbiter saw them last
    device.arbiter.expire(grace_ns=SECOND)
    assert shown() == [(0, False), (0, False)]
    assert view.changed_ns() == changed_ns  # nothing changed hands
