"""A borrower in another process: what it left comes home without it, what it held when it dies."""

import mmap
import os
import random
import socket
import struct
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
    SlabRecord,
)
from rose.errors import CorruptData, InvalidArgument, Unavailable
from tests.memory.tenant_process import BLOCK_BYTES, TenantProcess

SLAB, SLABS = 4096, 8
SECOND = 10**9
LONG_MS = 200_000.0  # bounds a hang, no more


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


def records_of(arbiter: Arbiter) -> list[SlabRecord]:
    fd = arbiter.share_ledger()
    records = LedgerView.open(fd).records()
    os.close(fd)
    return records


# ---- a loan and its way back


def test_granted_slab_is_found_without_an_answer(device: Device) -> None:
    device.grant(3)
    news = "(lambda n: [n.admitted, n.taken, n.closed])(tenant.news(timeout_ms=60000))"
    assert device.tenant.do(news) == [3, 0, []]
    assert device.tenant.do("blocks.free_blocks") == 12
    device.arbiter.check_invariants()


def test_idle_slabs_come_home_while_the_tenant_is_frozen(device: Device) -> None:
    device.grant(4)
    assert device.tenant.do("tenant.admit()") == 4
    device.tenant.stop()
    progress = device.arbiter.poll(device.revoke(4))
    assert (progress.returned, progress.pending) == (4, 0)
    assert device.held(device.serving) == 4
    device.tenant.go_on()
    assert device.tenant.do("blocks.alloc(1)") is None
    assert device.tenant.do("blocks.free_blocks") == 0
    device.arbiter.check_invariants()


def test_busy_slab_comes_home_when_the_tenant_frees_it(device: Device) -> None:
    device.grant(2)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(8))")
    revocation = device.revoke(2)
    assert device.arbiter.poll(revocation).pending == 2
    assert sorted(device.tenant.do("tenant.news(timeout_ms=60000).closed")) == [0, 1]
    assert device.tenant.do("tenant.revocation().pending") == 2
    device.tenant.do("blocks.free(held)")
    progress = device.arbiter.wait(revocation, timeout_ns=60 * SECOND)
    assert (progress.returned, progress.pending) == (2, 0)
    assert device.held(device.serving) == 2
    device.arbiter.check_invariants()


def test_pin_keeps_a_slab_until_it_is_dropped(device: Device) -> None:
    device.grant(1)
    device.tenant.do("tenant.admit(), held.append(blocks.pin_slabs([0]))")
    revocation = device.revoke(1)
    assert device.arbiter.poll(revocation).pending == 1
    device.tenant.do("blocks.unpin(held.pop())")
    assert device.arbiter.wait(revocation, timeout_ns=60 * SECOND).returned == 1


def test_closed_slab_gives_no_new_blocks(device: Device) -> None:
    device.grant(1)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(2))")
    device.revoke(1)
    assert device.tenant.do("blocks.alloc(1)") is None


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


def test_smallest_rank_is_revoked_first(device: Device) -> None:
    device.grant(3)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(12))")
    device.tenant.do("tenant.set_ranks([0, 1, 2], [7, 1, 9])")
    device.revoke(1)
    assert device.arbiter.leaving(device.rollout) == [1]


def test_slab_given_back_by_the_tenant_is_unowned(device: Device) -> None:
    device.grant(3)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(1))")
    assert device.tenant.do("tenant.give_idle(tenant.partition)") == 2
    device.tenant.tenant.sweep()
    assert device.held(device.rollout) == 1
    assert device.arbiter.snapshot().unowned == SLABS - 1
    device.arbiter.check_invariants()


def test_stale_generation_opens_nothing(device: Device) -> None:
    device.grant(1)
    device.tenant.do("tenant.admit()")
    device.revoke(1)  # it is serving's now, at a later generation
    assert records_of(device.arbiter)[0].owner == device.serving
    assert device.tenant.do("blocks.alloc(1)") is None
    device.arbiter.check_invariants()


def test_slab_regranted_to_a_tenant_that_did_not_look_is_usable(device: Device) -> None:
    device.grant(1)
    device.tenant.do("tenant.admit()")
    device.arbiter.revoke(device.rollout, 1, deadline_ns=device.arbiter.now_ns() + SECOND)
    assert device.grant(1).slabs == [0]
    assert device.tenant.do("tenant.admit()") == 1
    assert device.tenant.do("len(blocks.alloc(4))") == 4
    assert device.arbiter.candidates(device.rollout)[0].used > 0


def test_report_of_the_tenant_arrives(device: Device) -> None:
    device.grant(2)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(5))")
    device.tenant.do("tenant.beat(progress=42)")
    told = device.tenant.tenant
    assert (told.progress, told.used_blocks, told.free_blocks) == (42, 5, 3)
    assert 0 < told.heartbeat_ns <= device.arbiter.now_ns()
    used = sorted(one.used for one in device.arbiter.candidates(device.rollout))
    assert used == [1, 4]


def test_bytes_are_shared(device: Device) -> None:
    device.grant(1)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(1))")
    at = "tenant.slab_bytes + held[0] * 1024"
    device.tenant.do(f"tenant.pool_view().__setitem__({at}, 77)")
    assert device.arbiter.pool_view()[2 * SLAB] == 77


# ---- late, frozen and dead


def test_late_tenant_is_killed_and_its_slabs_are_usable(device: Device) -> None:
    device.grant(4)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(8))")
    device.tenant.stop()  # it can do nothing about it
    revocation = device.revoke(4, within_ns=1_000_000)
    progress = device.arbiter.wait(revocation, timeout_ns=60 * SECOND)
    assert (progress.returned, progress.fenced, progress.pending) == (2, 2, 0)
    assert device.tenant.tenant.wait_lost(timeout_ms=LONG_MS)
    assert device.tenant.tenant.was_killed
    assert not device.tenant.process.is_alive
    assert device.is_whole()


def test_late_slabs_stay_in_quarantine_while_the_tenant_lives(patient: Device) -> None:
    patient.grant(2)
    patient.tenant.do("tenant.admit(), held.extend(blocks.alloc(8))")
    patient.arbiter.wait(patient.revoke(2, within_ns=1_000_000), timeout_ns=60 * SECOND)
    assert patient.arbiter.snapshot().quarantined == 2
    assert patient.tenant.process.is_alive
    patient.arbiter.take(patient.serving, SLABS)
    assert patient.held(patient.serving) == SLABS - 2
    patient.tenant.do("blocks.free(held)")
    patient.tenant.tenant.sweep()
    assert patient.arbiter.snapshot().quarantined == 0
    assert patient.is_whole()


def test_killed_tenant_gives_everything_back(device: Device) -> None:
    device.grant(5)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(9))")
    revocation = device.revoke(4)
    device.tenant.kill()
    progress = device.arbiter.wait(revocation, timeout_ns=60 * SECOND)
    assert (progress.returned, progress.pending) == (4, 0)
    assert device.tenant.tenant.wait_lost(timeout_ms=LONG_MS)
    assert not device.tenant.tenant.was_killed
    assert not device.arbiter.snapshot().partitions[device.rollout].is_live
    assert device.is_whole()


@pytest.mark.parametrize("seed", range(8))
def test_books_balance_wherever_the_tenant_is_killed(seed: int) -> None:
    rng = random.Random(seed)
    device = Device()
    with device.tenant:
        device.grant(6)
        device.tenant.do("tenant.admit()")
        churn = "[blocks.free(blocks.alloc(n % 7 + 1) or []) for n in range(10**9)]"
        device.tenant.begin(churn)
        for _ in range(rng.randrange(1, 30)):
            device.arbiter.poll(device.revoke(rng.randint(1, 3)))
            device.arbiter.give_back(device.serving, SLABS)
            room = 6 - device.held(device.rollout)
            if room > 0:
                device.grant(rng.randint(1, room))
        device.tenant.kill()
        assert device.tenant.tenant.wait_lost(timeout_ms=LONG_MS)
        assert device.is_whole()


def test_dropped_tenant_keeps_what_it_is_inside_of_until_it_is_dead(patient: Device) -> None:
    patient.grant(4)
    patient.tenant.do("tenant.admit(), held.extend(blocks.alloc(4))")
    patient.arbiter.drop_partition(patient.rollout)
    assert patient.arbiter.snapshot().quarantined == 1
    patient.arbiter.check_invariants()
    patient.tenant.kill()
    assert patient.tenant.tenant.wait_lost(timeout_ms=LONG_MS)
    assert patient.is_whole()


def test_hang_up_of_the_arbiter_is_news(device: Device) -> None:
    assert not device.tenant.do("tenant.news(timeout_ms=0).is_arbiter_gone")
    device.tenant.begin("tenant.news(timeout_ms=60000).is_arbiter_gone")
    device.tenant.socket.shutdown(socket.SHUT_WR)
    assert device.tenant.answer() is True


# ---- a tenant that does as it likes


def mailbox_of(device: Device) -> mmap.mmap:
    return mmap.mmap(device.tenant.tenant.mailbox_fd, 0)


WORD_AT, WORD_BYTES = 128, 16


@pytest.mark.parametrize("word", [0, 1, 99, 1 << 63, (1 << 64) - 1, (5 << 32) | 1, 3])
def test_garbage_in_the_mailbox_harms_its_tenant_alone(device: Device, word: int) -> None:
    device.grant(3)
    device.tenant.do("tenant.admit(), held.extend(blocks.alloc(5))")
    with mailbox_of(device) as box:
        for slab in range(SLABS):
            struct.pack_into("<Q", box, WORD_AT + slab * WORD_BYTES, word)
        box[:WORD_AT] = bytes(WORD_AT)
    device.arbiter.check_invariants()
    device.arbiter.snapshot()
    progress = device.arbiter.wait(device.revoke(3, within_ns=1_000_000), timeout_ns=60 * SECOND)
    assert progress.pending == 0
    device.tenant.kill()
    assert device.tenant.tenant.wait_lost(timeout_ms=LONG_MS)
    assert device.is_whole()


def test_unknown_word_counts_as_busy(patient: Device) -> None:
    patient.grant(1)
    with mailbox_of(patient) as box:
        struct.pack_into("<Q", box, WORD_AT, 99)
    revocation = patient.revoke(1)
    assert patient.arbiter.poll(revocation).pending == 1


def test_ledger_cannot_be_written_by_a_tenant(device: Device) -> None:
    fd = device.arbiter.share_ledger()
    attempts = (
        "os.pwrite(fds[0], b'x', 0)",
        "os.ftruncate(fds[0], 1)",
        "__import__('mmap').mmap(fds[0], 64)",
        "os.pwrite(os.open(f'/proc/self/fd/{fds[0]}', os.O_RDWR), b'x', 0)",
    )
    for attempt in attempts:
        with pytest.raises(RuntimeError, match="PermissionError"):
            device.tenant.do(attempt, fds=(fd,))
    os.close(fd)
    device.arbiter.check_invariants()


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


def test_hundred_attachments_leave_no_descriptor(device: Device) -> None:
    attach_here(device).close()
    before = open_fds()
    for _ in range(100):
        attach_here(device).close()
    assert open_fds() == before


def test_hundred_tenants_leave_no_descriptor() -> None:
    device = Device()
    with device.tenant:
        own = Process.open(os.getpid())
        before = -1
        for turn in range(100):
            partition = device.arbiter.add_partition("more", reserve_slabs=0, limit_slabs=1)
            tenant = device.arbiter.add_tenant(partition, own)
            tenant.close()
            device.arbiter.lose_tenant(partition)
            if turn == 0:
                del tenant
                before = open_fds()
        del tenant
        assert open_fds() == before
        device.arbiter.check_invariants()


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
