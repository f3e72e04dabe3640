"""Borrowers in separate processes, for the suites that measure across processes.

They are forked from a server that has already imported rose, so a hundred of them start in a second
and none inherits a thread.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Final

from rose._core import Arbiter, Attachment, BlockAllocator, PoolExport, Process, Tenant
from rose.errors import check

BLOCK_BYTES: Final = 32 * 1024
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["bench.borrower"])
_READY_S: Final = 60.0  # longest wait for a borrower
SEGMENT_NS: Final = 1_000_000  # a borrower's work between two gates

Work = Callable[[Attachment, BlockAllocator, Connection], None]


def _run(gate: Connection, line: Connection, work: Work) -> None:
    numbers, count = gate.recv()
    fds = [reduction.recv_handle(gate) for _ in range(count)]
    *objects, ledger, mailbox, to_arbiter, to_tenant = fds
    tenant = Attachment.create(
        pool=PoolExport(objects, **numbers),
        ledger_fd=ledger,
        mailbox_fd=mailbox,
        to_arbiter_fd=to_arbiter,
        to_tenant_fd=to_tenant,
    )
    origin_bytes = tenant.slab_bytes
    blocks = tenant.allocator(tenant.partition, block_bytes=BLOCK_BYTES, origin_bytes=origin_bytes)
    work(tenant, blocks, line)


class Borrower:
    """A process attached to a partition that works until it is killed."""

    def __init__(self, arbiter: Arbiter, partition: int, work: Work) -> None:
        self.line, theirs = _CONTEXT.Pipe()
        # The tenant needs a live process, so the child waits at this pipe for its start.
        gate, opener = _CONTEXT.Pipe()
        self.child = _CONTEXT.Process(target=_run, args=(gate, theirs, work), daemon=True)
        self.child.start()
        check(self.child.pid is not None, "the process has not started")
        self.process = Process.open(self.child.pid or 0)
        self.tenant: Tenant = arbiter.add_tenant(partition, self.process)
        pool, ledger_fd = arbiter.share_pool(), arbiter.share_ledger()
        names = ("sizes", "slab_bytes", "slab_count", "header_slabs", "is_on_host")
        numbers = {name: getattr(pool, name) for name in names}
        tenant_fds = [self.tenant.mailbox_fd, self.tenant.to_arbiter_fd, self.tenant.to_tenant_fd]
        opener.send((numbers, len(pool.fds) + 4))
        for fd in (*pool.fds, ledger_fd, *tenant_fds):
            reduction.send_handle(opener, fd, self.child.pid)
        os.close(ledger_fd)
        opener.close()

    def await_progress(self, least: int) -> None:
        """Wait until the borrower has reached this progress."""
        end = time.monotonic() + _READY_S
        while self.tenant.progress < least:
            check(time.monotonic() < end, "the borrower is stuck")
            time.sleep(2e-4)

    def ask(self) -> None:
        """Ask a borrower that runs segments for their lengths."""
        self.line.send("segments")

    def answer(self) -> list[int]:
        """Return the answer to `ask`."""
        check(self.line.poll(_READY_S), f"the borrower sent no answer for {_READY_S:g} s")
        lengths: list[int] = self.line.recv()
        return lengths

    def await_exit(self) -> None:
        """Wait until the killed process has been reaped."""
        self.child.join(_READY_S)
        check(
            self.child.exitcode is not None, f"the borrower was alive {_READY_S:g} s after a kill"
        )

    def end(self) -> None:
        """Kill it, and wait until its slabs are returned."""
        self.child.kill()
        self.await_exit()
        check(self.tenant.wait_lost(timeout_ms=_READY_S * 1e3), "the death was not noticed")
        self.tenant.close()
        self.line.close()


# ---- work of borrowers


def hold_idle(tenant: Attachment, blocks: BlockAllocator, _line: Connection) -> None:
    """Admit granted slabs and use none of them."""
    admitted = blocks.capacity_blocks * BLOCK_BYTES // tenant.slab_bytes
    while True:
        tenant.beat(progress=admitted)
        admitted += tenant.news(timeout_ms=1e3).admitted


def hold_busy(tenant: Attachment, blocks: BlockAllocator, _line: Connection) -> None:
    """Use every block of every slab as soon as it is granted, for ever."""
    held = 0
    while True:
        held += len(blocks.alloc(blocks.free_blocks) or ())
        tenant.beat(progress=held * BLOCK_BYTES // tenant.slab_bytes)
        tenant.news(timeout_ms=1e3)


def run_segments(tenant: Attachment, blocks: BlockAllocator, line: Connection) -> None:
    """Work in segments over pinned blocks; at a gate, release every slab that is being revoked.

    The reply to each message is the lengths of the segments since the last reply, in ns.
    """
    lengths: list[int] = []
    while True:
        held: list[int] = []
        pins: list[int] = []
        while not (held and tenant.leaving()):
            # The slabs of a grant arrive one by one, so each gate looks for further ones.
            if more := blocks.alloc(blocks.free_blocks):
                held += more
                pins.append(blocks.pin(more))
            if not held:
                tenant.news(timeout_ms=1e3)
                continue
            began_ns = time.perf_counter_ns()
            while time.perf_counter_ns() - began_ns < SEGMENT_NS:
                pass
            lengths.append(time.perf_counter_ns() - began_ns)
        # The step is aborted at its gate: it is rolled back and its blocks are freed.
        for pin in pins:
            blocks.unpin(pin)
        blocks.free(held)
        if line.poll():
            line.recv()
            line.send(lengths)
            lengths = []
