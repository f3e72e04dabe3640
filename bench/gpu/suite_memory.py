"""Cost of a driver's mapping, compared with a move of ownership, which makes no driver call."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.gpu.driver_calls import DriverCalls
from bench.gpu.lanes import Lanes
from bench.gpu.report import Report
from bench.paired import quantile
from bench.rows import Peer
from rose.errors import check
from rose.units import GIB, MIB

SIZES_MIB: Final = (2, 32, 1024)
CALLS: Final = ("create", "map", "unmap")
ROUNDS: Final = 15
BUSY_MS: Final = 40.0
SLAB_BYTES: Final = 32 * MIB
MOVES: Final = 400

MAPPINGS: Final = tuple(
    f"vmm_{call}_us_{size}mib{beside}"
    for size in SIZES_MIB
    for call in CALLS
    for beside in ("", "_busy")
)
ROWS: Final = (
    *MAPPINGS,
    "move_1gib_us_p50",
    "move_1gib_us_p99",
    "move_1gib_us_p99_busy",
)


@contextmanager
def busy(lanes: Lanes) -> Iterator[None]:
    """Keep a kernel running on the serving stream."""
    import torch

    with torch.cuda.stream(lanes.serving):
        lanes.sleep_ms(BUSY_MS)()
    time.sleep(1e-3)
    yield
    lanes.serving.synchronize()


def mappings(report: Report, lanes: Lanes) -> None:
    with report.rows(*MAPPINGS):
        calls = DriverCalls()
        for size in SIZES_MIB:
            names = [f"vmm_{call}_us_{size}mib" for call in CALLS]
            with report.rows(*names, *(f"{name}_busy" for name in names)):
                one_size(report, lanes, calls, names, size * MIB)


def one_size(
    report: Report, lanes: Lanes, calls: DriverCalls, names: list[str], size_bytes: int
) -> None:
    calls.cycle_us(size_bytes)  # the first one differs from the others
    idle = [calls.cycle_us(size_bytes) for _ in range(ROUNDS)]
    beside = []
    for _ in range(ROUNDS):
        with busy(lanes):
            beside.append(calls.cycle_us(size_bytes))
    for at, name in enumerate(names):
        idle_us, busy_us = (statistics.median(one[at] for one in all_) for all_ in (idle, beside))
        report.add(name, idle_us, "us")
        report.add(f"{name}_busy", busy_us, "us", peer=Peer("on an idle GPU", idle_us, "us"))


class Loan:
    """A pool on the device with memory that a borrower holds but does not use."""

    def __init__(self, device: Any, size_bytes: int = GIB) -> None:
        from rose._core import Arbiter

        self.slabs = size_bytes // SLAB_BYTES
        self.arbiter = Arbiter.create(
            slab_bytes=SLAB_BYTES,
            slab_count=self.slabs + 2,
            header_slabs=2,
            device=device,
        )
        check(not self.arbiter.is_on_host, "the pool is not on the device")
        everything = {"reserve_slabs": 0, "limit_slabs": self.slabs + 2}
        self.serving = self.arbiter.add_partition("serving", **everything)
        self.rollout = self.arbiter.add_partition("rollout", **everything)
        for partition in (self.serving, self.rollout):
            self.arbiter.allocator(partition, block_bytes=MIB, origin_bytes=partition * SLAB_BYTES)

    def move_us(self) -> float:
        """Lend it all, unmeasured, and take it back; serving owns it when the call returns."""
        from rose._core import Grant

        loan = self.arbiter.grant(self.rollout, self.slabs, ttl_ns=10**12)
        check(isinstance(loan, Grant), "the pool was not lent")
        deadline_ns = self.arbiter.now_ns() + 10**9
        began_ns = time.perf_counter_ns()
        self.arbiter.revoke(self.rollout, self.slabs, deadline_ns=deadline_ns, taker=self.serving)
        took_us = (time.perf_counter_ns() - began_ns) * 1e-3
        home = self.arbiter.give_back(self.serving, self.slabs)
        check(home == self.slabs, "an idle loan was not returned within the call")
        return took_us


def moves(report: Report, lanes: Lanes) -> None:
    names = ("move_1gib_us_p50", "move_1gib_us_p99", "move_1gib_us_p99_busy")
    with report.rows(*names):
        loan = Loan(lanes.gpu.device)
        for _ in range(20):
            loan.move_us()
        idle = [loan.move_us() for _ in range(MOVES)]
        with busy(lanes):
            beside = [loan.move_us() for _ in range(MOVES)]
        report.add("move_1gib_us_p50", quantile(idle, 0.5), "us")
        idle_p99 = quantile(idle, 0.99)
        report.add("move_1gib_us_p99", idle_p99, "us")
        peer = Peer("on an idle GPU", idle_p99, "us")
        report.add("move_1gib_us_p99_busy", quantile(beside, 0.99), "us", peer=peer)


def measure(report: Report) -> None:
    lanes = Lanes()
    moves(report, lanes)
    mappings(report, lanes)
