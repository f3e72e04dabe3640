"""A borrower in another process: how fast its memory returns when it is idle, busy or dead."""

import os
import random
import select
import time

from bench.borrower import SEGMENT_NS, Borrower, Work, hold_busy, hold_idle, run_segments
from bench.conftest import Report
from bench.paired import Measure, quantile, timed
from bench.programs import program
from bench.rows import Bar, Peer
from rose._core import Arbiter, Grant
from rose.errors import DeadlineExceeded, check
from rose.units import GIB, MIB, NS_PER_MS

SLAB_BYTES = 2 * MIB
SPARE_SLABS = 8
KILLED_SLABS = 64
LOAD_SLABS = 16
LOAD_DEADLINE_MS = 50
NOTICE_S = 60.0  # longest wait for a killed or a slow borrower


class Loan:
    """A borrower process with a loan, from a pool with a few more slabs."""

    def __init__(self, slabs: int, work: Work) -> None:
        self.slabs = slabs
        total = slabs + SPARE_SLABS
        self.arbiter = Arbiter.create(slab_bytes=SLAB_BYTES, slab_count=total, header_slabs=2)
        self.serving = self.arbiter.add_partition("serving", reserve_slabs=0, limit_slabs=total)
        self.rollout = self.arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=total)
        self.arbiter.allocator(self.serving, block_bytes=SLAB_BYTES // 64, origin_bytes=0)
        self.borrower = Borrower(self.arbiter, self.rollout, work)
        self.lent = 0
        self.lend()

    def lend(self) -> None:
        loan = self.arbiter.grant(self.rollout, self.slabs, ttl_ns=10**12)
        check(isinstance(loan, Grant), "the pool was not lent")
        self.lent += self.slabs

    def revoke(self, within_ms: int = 1_000) -> int:
        deadline_ns = self.arbiter.now_ns() + within_ms * NS_PER_MS
        return self.arbiter.revoke(
            self.rollout, self.slabs, deadline_ns=deadline_ns, taker=self.serving
        )

    def take_home(self) -> None:
        home = self.arbiter.give_back(self.serving, self.slabs)
        check(home == self.slabs, "a part of the loan was not returned")


class IdleLoan(Loan):
    """A loan of 1 GiB that the borrower admitted but does not use."""

    def __init__(self) -> None:
        super().__init__(GIB // SLAB_BYTES, hold_idle)

    def measure_ns(self, count: int) -> list[float]:
        """Revoke the whole loan `count` times and wait for all slabs; return the durations."""
        samples = []
        for _ in range(count):
            self.borrower.await_progress(self.lent)
            samples.append(timed(self.revoke)())
            self.take_home()
            self.lend()
        return samples


def test_revoke_1gib_idle_over_futex_roundtrip(report: Report) -> None:
    round_trips = program("futex_round_trip")
    loan = IdleLoan()
    count = report.count(200)
    samples: list[float] = []

    def revoke_p99() -> float:
        window = loan.measure_ns(count)
        samples.extend(window)
        return quantile(window, 0.99)

    def round_trip_p99() -> float:
        return quantile([float(one) for one in round_trips(count)], 0.99)

    paired = report.pairs(revoke_p99, round_trip_p99, rounds=21)
    loan.borrower.end()
    report.add_ratio(
        "revoke_1gib_idle_over_futex_roundtrip",
        paired,
        peer=Peer("futex round trip between two threads, p99", paired.peer * 1e-3, "us"),
        bar=Bar(at_most=3.0),
    )
    report.add("revoke_1gib_idle_us_p99", quantile(samples, 0.99) * 1e-3, "us")
    report.add("revoke_1gib_idle_us_p50", quantile(samples, 0.50) * 1e-3, "us")


def kill_to_notice_ns() -> float:
    """Return the time from a kill until the kernel reports the borrower's exit."""
    loan = Loan(KILLED_SLABS, hold_busy)
    loan.borrower.await_progress(KILLED_SLABS)
    loan.borrower.tenant.close()  # nothing else reacts to its death
    gone = select.poll()
    gone.register(loan.borrower.process.fileno(), select.POLLIN)
    began_ns = time.perf_counter_ns()
    os.kill(loan.borrower.child.pid or 0, 9)
    is_gone = gone.poll(NOTICE_S * 1e3)
    took_ns = time.perf_counter_ns() - began_ns
    check(bool(is_gone), "the kernel did not report the borrower's exit")
    loan.borrower.await_exit()
    return took_ns


def kill_to_usable_ns() -> float:
    """Return the time from a kill until serving has all slabs that the borrower used."""
    loan = Loan(KILLED_SLABS, hold_busy)
    loan.borrower.await_progress(KILLED_SLABS)
    began_ns = time.perf_counter_ns()
    os.kill(loan.borrower.child.pid or 0, 9)
    is_lost = loan.borrower.tenant.wait_lost(timeout_ms=NOTICE_S * 1e3)
    check(is_lost, "the borrower's death was not noticed")
    taken = loan.arbiter.take(loan.serving, loan.slabs + SPARE_SLABS)
    took_ns = time.perf_counter_ns() - began_ns
    check(len(taken) == loan.slabs + SPARE_SLABS, "serving did not get every slab")
    loan.borrower.await_exit()
    loan.borrower.tenant.close()
    return took_ns


def test_kill_to_usable_over_pidfd(report: Report) -> None:
    count = report.count(40)

    def p99_of(measure_ns: Measure) -> float:
        return quantile([measure_ns() for _ in range(count)], 0.99)

    paired = report.pairs(
        lambda: p99_of(kill_to_usable_ns), lambda: p99_of(kill_to_notice_ns), rounds=9
    )
    report.add_ratio(
        "kill_to_usable_over_pidfd",
        paired,
        peer=Peer("SIGKILL to a readable pidfd, p99", paired.peer * 1e-3, "us"),
        bar=Bar(at_most=2.0),
    )
    report.add("kill_to_usable_us_p99", paired.subject * 1e-3, "us")


class LoadedLoan(Loan):
    """A loan with pinned blocks on which the borrower works in segments."""

    def __init__(self) -> None:
        super().__init__(LOAD_SLABS, run_segments)
        self.missed = 0
        self.samples: list[float] = []
        self.segments: list[float] = []
        self._rng = random.Random(5)

    def measure_ns(self, count: int) -> float:
        """Return the p99 of `count` revocations at random moments of a segment."""
        window = []
        for _ in range(count):
            self.await_work()
            time.sleep(self._rng.random() * SEGMENT_NS * 1e-9)
            began_ns = time.perf_counter_ns()
            revocation = self.revoke(LOAD_DEADLINE_MS)
            progress = self.arbiter.wait(revocation, timeout_ns=10**10)
            window.append(float(time.perf_counter_ns() - began_ns))
            self.missed += progress.fenced
            if progress.fenced:
                raise DeadlineExceeded(f"a revocation took more than {LOAD_DEADLINE_MS} ms")
            self.take_home()
            self.lend()
        self.samples.extend(window)
        return quantile(window, 0.99)

    def await_work(self) -> None:
        """Wait until the borrower uses every granted slab."""
        end_s = time.monotonic() + NOTICE_S
        while idle := sum(one.used == 0 for one in self.arbiter.candidates(self.rollout)):
            check(time.monotonic() < end_s, f"the borrower used none of {idle} granted slabs")
            time.sleep(2e-4)

    def segment_ns(self) -> float:
        """Return the p99 of the borrower's segments since the previous call."""
        self.borrower.ask()
        self.measure_ns(1)  # the borrower answers when it aborts
        lengths = self.borrower.answer()
        self.segments.extend(lengths)
        return quantile(lengths, 0.99)


def test_revoke_under_load_over_segment(report: Report) -> None:
    loan = LoadedLoan()
    count = report.count(100)
    name = "revoke_under_load_over_segment"
    try:
        paired = report.pairs(lambda: loan.measure_ns(count), loan.segment_ns, rounds=15)
    except DeadlineExceeded as late:
        report.leave_out([name, "revoke_under_load_us_p99"], str(late))
        return
    finally:
        loan.borrower.end()
        report.add("revoke_under_load_missed", loan.missed, "slabs", bar=Bar(at_most=0.0))
    report.add_ratio(
        name,
        paired,
        peer=Peer("the borrower's segment, p99", paired.peer * 1e-3, "us"),
        bar=Bar(at_most=1.2),
    )
    report.add("revoke_under_load_us_p99", quantile(loan.samples, 0.99) * 1e-3, "us")
