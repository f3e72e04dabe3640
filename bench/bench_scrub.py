"""Mapped loans: cost of zeroing lent slabs, and time to attach to a pool."""

import ctypes
import time

from bench.conftest import Report
from bench.paired import timed
from bench.rows import Bar, Peer
from rose._core import Arbiter, Grant, Pool
from rose.errors import check
from rose.memory import MappedLoans
from rose.units import GIB, MIB

SLAB_BYTES, SLABS = 16 * MIB, 64
ROUNDS = 20
# Size of a pool that is never touched, so it uses addresses but no memory.
JOINED_BYTES = 64 * GIB
NS_PER_MS = 1e6


def test_scrub_of_a_grant(report: Report) -> None:
    """`lend` for a grant of 1 GiB, divided by one memset of the same bytes."""
    arbiter = Arbiter.create(
        slab_bytes=SLAB_BYTES, slab_count=SLABS, header_slabs=1, object_bytes_max=SLAB_BYTES
    )
    partition = arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=SLABS)
    arbiter.allocator(partition, block_bytes=MIB, origin_bytes=0)
    grant = arbiter.grant(partition, SLABS, ttl_ns=10**15)
    check(isinstance(grant, Grant) and len(grant.slabs) == SLABS, "the pool was not lent")
    slabs = grant.slabs if isinstance(grant, Grant) else []
    loans = MappedLoans(arbiter, partition)
    memset = ctypes.CDLL(None).memset
    memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    memset.restype = ctypes.c_void_p
    first = arbiter.pool_address + SLAB_BYTES

    def lend() -> None:
        loans.lend(slabs).close()

    memset(first, 0x5A, SLABS * SLAB_BYTES)  # from here on the pages exist
    lend()
    check(not arbiter.pool_view()[SLAB_BYTES:].any(), "a lent slab is not zero")
    paired = report.pairs(
        timed(lend), timed(lambda: memset(first, 0, SLABS * SLAB_BYTES)), rounds=ROUNDS
    )
    report.add_ratio(
        "scrub_over_memset",
        paired,
        peer=Peer("one memset of libc", paired.peer / NS_PER_MS, "ms"),
        bar=Bar(at_most=1.1),
    )
    report.add("scrub_gb_per_s", SLABS * SLAB_BYTES / paired.subject, "GB/s")


def test_joining_a_pool(report: Report) -> None:
    """Export and attach a pool of 64 GiB in objects of 1 GiB, without the socket in between."""
    arbiter = Arbiter.create(
        slab_bytes=SLAB_BYTES, slab_count=JOINED_BYTES // SLAB_BYTES, header_slabs=0
    )
    samples: list[int] = []

    def join() -> None:
        began_ns = time.perf_counter_ns()
        pool = Pool.attach(arbiter.share_pool())
        samples.append(time.perf_counter_ns() - began_ns)
        check(pool.pool_bytes == JOINED_BYTES, "the attached pool has another size")

    report.repeat(join, rounds=100)
    report.add("share_attach_ms", sorted(samples)[len(samples) // 2] / NS_PER_MS, "ms")
