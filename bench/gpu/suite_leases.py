"""Leases between processes on a device: hand-over, descriptors, a death, and mapped loans."""

import statistics
import time
from typing import Any, Final

from bench.gpu.exporter import exporter
from bench.gpu.lanes import Lanes
from bench.gpu.report import Report
from bench.gpu.suite_memory import SLAB_BYTES, Loan
from bench.paired import quantile
from bench.rows import Bar
from rose.errors import check
from rose.units import GIB, MIB

MOVED_GIB: Final = (10, 40)
MOVES: Final = 400
EXPORT_MIB: Final = (32, 1024)
CALLS: Final = 30
JOINED_BYTES: Final = 8 * GIB
LENT_SLABS: Final = GIB // SLAB_BYTES
LOANS: Final = 20
READS: Final = 200
STRESS_SLABS: Final = 8
STRESS_CYCLES: Final = 300
STRESS_READS: Final = 64  # reads of a slab beside one cycle: about as long as the cycle
STRESS_QUEUE: Final = 32
PATTERN: Final = 0x5EED

MOVED: Final = tuple(f"move_{gib}gib_us_{share}" for gib in MOVED_GIB for share in ("p50", "p99"))
DESCRIPTORS: Final = tuple(
    f"fd_{verb}_us_{mib}mib" for mib in EXPORT_MIB for verb in ("export", "attach")
)
MAPPED: Final = ("mapped_scrub_gb_s", "mapped_grant_gb_s", "mapped_sweep_us_32mib")
DEATH: Final = ("exporter_death_words_wrong", "exporter_death_attach_8gib_ms")
# Kernels that read through serving's mapping, as in production, and through the window itself,
# which its thread rule forbids. The row shows whether the rule is necessary.
READERS: Final = ("serving", "window")
STRESS: Final = tuple(
    f"remap_beside_{reader}_{figure}"
    for reader in READERS
    for figure in ("words_wrong", "us_32mib")
)
ROWS: Final = (*MOVED, *DESCRIPTORS, *MAPPED, *DEATH, *STRESS)


def moves(report: Report, device: Any) -> None:
    """A loan of many GiB returns in one call, whatever its size: ownership moves, no memory."""
    for gib in MOVED_GIB:
        names = [name for name in MOVED if name.startswith(f"move_{gib}gib")]
        with report.rows(*names):
            loan = Loan(device, gib * GIB)
            samples = [loan.move_us() for _ in range(20 + MOVES)][20:]
            for name, share in zip(names, (0.5, 0.99), strict=True):
                report.add(name, quantile(samples, share), "us")


def descriptors(report: Report, device: Any) -> None:
    """Cost of handing over one memory object: export, import and mapping."""
    from rose._core import Arbiter, Pool

    for mib in EXPORT_MIB:
        names = [f"fd_{verb}_us_{mib}mib" for verb in ("export", "attach")]
        with report.rows(*names):
            size_bytes = mib * MIB
            arbiter = Arbiter.create(
                slab_bytes=size_bytes, slab_count=1, header_slabs=0, device=device
            )
            samples = []
            for _ in range(CALLS):
                began_ns = time.perf_counter_ns()
                export = arbiter.share_pool()
                shared_ns = time.perf_counter_ns()
                pool = Pool.attach(export, device=device)
                samples.append((shared_ns - began_ns, time.perf_counter_ns() - shared_ns))
                check(pool.pool_bytes == size_bytes, "the attached pool has another size")
            for at, name in enumerate(names):
                report.add(name, statistics.median(one[at] for one in samples) * 1e-3, "us")


class MappedLoan:
    """1 GiB in slabs that a borrower maps when they are lent."""

    def __init__(self, device: Any, slabs: int = LENT_SLABS) -> None:
        from bench.windows import open_window
        from rose._core import Arbiter
        from rose.memory import MappedLoans

        self.slabs = slabs
        self.arbiter = Arbiter.create(
            slab_bytes=SLAB_BYTES,
            slab_count=slabs,
            header_slabs=1,
            object_bytes_max=SLAB_BYTES,
            device=device,
        )
        self.partition = self.arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=slabs)
        self.allocator = self.arbiter.allocator(self.partition, block_bytes=MIB, origin_bytes=0)
        self.loans = MappedLoans(self.arbiter, self.partition)
        self.window = open_window(self.arbiter, header_index=0, device=device)

    def cycle_s(self) -> tuple[float, float, float]:
        """Lend everything, map it, take it back and unmap it; return the times of these steps.

        Serving has the memory before anything is unmapped.
        """
        from bench.windows import keep, take
        from rose._core import Grant

        grant = self.arbiter.grant(self.partition, self.slabs, ttl_ns=10**12)
        check(isinstance(grant, Grant), "the pool was not lent")
        began_ns = time.perf_counter_ns()
        lent = self.loans.lend(grant.slabs)
        lent_ns = time.perf_counter_ns()
        check(len(lent.fds) == self.slabs, "a part of the loan was taken back")
        with lent:
            take(self.window, lent)
        mapped_ns = time.perf_counter_ns()
        self.arbiter.revoke(self.partition, self.slabs, deadline_ns=self.arbiter.now_ns() + 10**9)
        check(self.arbiter.snapshot().unowned == self.slabs, "a slab was not returned at once")
        keep(self.window, [])
        sweeping_ns = time.perf_counter_ns()
        check(self.window.sweep(self.slabs) == self.slabs, "the sweep did not unmap every slab")
        swept_ns = time.perf_counter_ns()
        took_ns = (lent_ns - began_ns, mapped_ns - began_ns, swept_ns - sweeping_ns)
        scrub_s, grant_s, sweep_s = (one_ns * 1e-9 for one_ns in took_ns)
        return scrub_s, grant_s, sweep_s


def mapped_loans(report: Report, device: Any) -> None:
    """Cost of zeroing a lent slab, and of zeroing and mapping; unmapping does not delay serving."""
    with report.rows(*MAPPED):
        loan = MappedLoan(device)
        loan.cycle_s()
        samples = [loan.cycle_s() for _ in range(LOANS)]
        scrub_s, grant_s, sweep_s = (statistics.median(s[at] for s in samples) for at in range(3))
        gigabytes = loan.slabs * SLAB_BYTES * 1e-9
        report.add("mapped_scrub_gb_s", gigabytes / scrub_s, "GB/s")
        report.add("mapped_grant_gb_s", gigabytes / grant_s, "GB/s")
        report.add("mapped_sweep_us_32mib", sweep_s / loan.slabs * 1e6, "us")


def words_of(owner: Any, words: int, *, offset_bytes: int = 0) -> Any:
    """Return a pool's device memory as a tensor."""
    import numpy as np
    import torch

    from rose.memory import DeviceArray

    address = owner.pool_address + offset_bytes
    array = DeviceArray(owner, address, (words,), np.dtype(np.int32))
    return torch.as_tensor(array, device="cuda:0")


def exporter_death(report: Report, lanes: Lanes) -> None:
    """Whether memory keeps its bytes when the process that created it is killed during reads.

    The design requires it: a borrower of a pool whose creator died must not fault.
    """
    import torch

    from rose._core import Pool

    with (
        report.rows(*DEATH),
        exporter(slab_bytes=SLAB_BYTES, slabs=JOINED_BYTES // SLAB_BYTES) as other,
    ):
        began_ns = time.perf_counter_ns()
        pool = Pool.attach(other.export, device=lanes.gpu.device)
        attached_ns = time.perf_counter_ns()
        words = words_of(pool, JOINED_BYTES // 4)
        words.fill_(PATTERN)
        torch.cuda.synchronize()
        wrong = torch.zeros((), dtype=torch.int64, device="cuda:0")
        with torch.cuda.stream(lanes.serving):
            for read in range(READS):
                if read == READS // 2:
                    other.kill()  # enqueued work still runs
                wrong += (words[::4096] != PATTERN).sum()
        lanes.serving.synchronize()
        wrong += (words != PATTERN).sum()
        report.add("exporter_death_words_wrong", int(wrong.item()), "words", bar=Bar(at_most=0))
        report.add("exporter_death_attach_8gib_ms", (attached_ns - began_ns) * 1e-6, "ms")


def remap_stress(report: Report, lanes: Lanes, reader: str) -> None:
    """Map and unmap slabs of a window while kernels read another slab, which stays.

    A fault ends the context and all later rows, so this is the last part.
    """
    import torch

    names = [name for name in STRESS if name.startswith(f"remap_beside_{reader}")]
    with report.rows(*names):
        loan = MappedLoan(lanes.gpu.device, STRESS_SLABS)
        owner = loan.arbiter if reader == "serving" else loan.window
        words = words_of(owner, SLAB_BYTES // 4)  # the header slab
        words.fill_(PATTERN)
        wrong = torch.zeros((), dtype=torch.int64, device="cuda:0")
        torch.cuda.synchronize()
        cycles_s = []
        for cycle in range(STRESS_CYCLES):
            with torch.cuda.stream(lanes.serving):
                for _ in range(STRESS_READS):
                    wrong += (words != PATTERN).sum()
            began_s = time.perf_counter()
            loan.cycle_s()
            cycles_s.append(time.perf_counter() - began_s)
            if cycle % STRESS_QUEUE == 0:
                lanes.serving.synchronize()  # so that the queue does not grow without bound
        lanes.serving.synchronize()
        report.add(names[0], int(wrong.item()), "words", bar=Bar(at_most=0))
        report.add(names[1], statistics.median(cycles_s) / STRESS_SLABS * 1e6, "us")


def measure(report: Report) -> None:
    lanes = Lanes()
    moves(report, lanes.gpu.device)
    descriptors(report, lanes.gpu.device)
    mapped_loans(report, lanes.gpu.device)
    exporter_death(report, lanes)
    for reader in READERS:
        remap_stress(report, lanes, reader)
